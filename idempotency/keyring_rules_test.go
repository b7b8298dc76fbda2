package idempotency_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

var keyRingRules = []rule{
	{"Stored answers can be encrypted", func(t *testing.T) {
		options := &idempotency.Options{KeyRing: ringOf(t, "new"), MaxStored: 50_000}
		body := map[string]string{`"short"`: "the secret", `"long"`: strings.Repeat("the secret ", 2000), `"oversize"`: strings.Repeat("the secret ", 5000)}
		g := newRig(t, options, func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprint(w, body[r.Header.Get("Idempotency-Key")])
		})
		for key := range body {
			first := g.send(withKey(key))
			isFresh(t, first, 200)
			if again := g.send(withKey(key)); key == `"oversize"` {
				isProblem(t, again, "answer-not-kept", 410)
			} else {
				isReplay(t, again, first)
			}
		}
		g.ran(3)
		for key, record := range records(t, g) {
			if id, ok := idempotency.EncryptedWith(record); !ok || id != "new" || bytes.Contains(record, []byte("secret")) {
				t.Errorf("%s is stored as %q", key, record)
			}
		}

		j, journal := newJournalRig(t, options, write(http.StatusCreated))
		first := j.send()
		isReplay(t, j.send(), first)
		committed(t, journal, 1)
		for key, record := range records(t, j) {
			if _, ok := idempotency.EncryptedWith(record); !ok {
				t.Errorf("in a transaction %s is stored as %q", key, record)
			}
		}
	}},
	{"Encryption keys are rotated without a pause", func(t *testing.T) {
		var answers []*httptest.ResponseRecorder
		g := newRig(t, nil, nil)
		steps := [][]string{
			{"plaintext", "old"}, {"old", "plaintext"}, {"old", "plaintext", "new"}, {"new", "plaintext", "old"},
			{"new", "plaintext"}, {"plaintext", "new"},
		}
		for i, ids := range steps {
			step := newRigOn(t, g.store, &idempotency.Options{KeyRing: ringOf(t, ids...)}, nil)
			answers = append(answers, step.send(withKey(fmt.Sprint("k", i))))
			for j, first := range answers {
				// The old key, of k1 and k2, is removed when their answers have ended.
				if slices.Contains(ids, "old") || j == 0 || j > 2 {
					isReplay(t, step.send(withKey(fmt.Sprint("k", j))), first)
				}
			}
			step.ran(1)
		}
		// A process that is one step behind reads what the next step stores.
		for i := range len(steps) - 1 {
			behind := newRigOn(t, g.store, &idempotency.Options{KeyRing: ringOf(t, steps[i]...)}, nil)
			isReplay(t, behind.send(withKey(fmt.Sprint("k", i+1))), answers[i+1])
			behind.ran(0)
		}
	}},
	{"A missing encryption key runs nothing", func(t *testing.T) {
		old := newRig(t, &idempotency.Options{KeyRing: ringOf(t, "old")}, nil)
		isFresh(t, old.send(), 201)
		for name, ring := range map[string]*idempotency.KeyRing{"another ring": ringOf(t, "new"), "no ring": nil} {
			log, logger := newLogger()
			g := newRigOn(t, old.store, &idempotency.Options{KeyRing: ring, Logger: logger}, nil)
			for range 2 {
				isProblem(t, g.send(), "answer-not-kept", 410)
			}
			if got := strings.Count(log.String(), `encrypted with the key \"old\"`); got != 1 {
				t.Errorf("%s: %d warnings name the key; want 1: %s", name, got, log)
			}
			g.ran(0)
			if e := g.last(); e.Kind != idempotency.EventNotKept || !errors.Is(e.Err, idempotency.ErrRecord) || !strings.Contains(e.Err.Error(), `"old"`) {
				t.Errorf("%s: observed %+v", name, e)
			}
		}
		if w := old.send(); w.Code != 201 {
			t.Errorf("after that the key's owner is answered %d", w.Code)
		}
		old.ran(1)
	}},
	{"An encrypted answer belongs to its key", func(t *testing.T) {
		g := newRig(t, &idempotency.Options{KeyRing: ringOf(t, "new")}, nil)
		isFresh(t, g.send(withKey("mine")), 201)
		mine, changed := []byte(nil), []byte(nil)
		for _, record := range records(t, g) {
			mine, changed = record, bytes.Clone(record)
			changed[len(changed)-1] ^= 1
		}
		for key, record := range map[string][]byte{"yours": mine, "changed": changed} {
			storeRecord(t, g, key, record)
			isProblem(t, g.send(withKey(key)), "answer-not-kept", 410)
		}
		g.ran(1)
		other, err := dibs.New(g.store, &dibs.Options{Namespace: "other"})
		testkit.Must(t, err)
		defer other.Close()
		elsewhere := newRigOn(t, g.store, &idempotency.Options{KeyRing: ringOf(t, "new")}, nil)
		if elsewhere.m, err = idempotency.New(other, &idempotency.Options{KeyRing: ringOf(t, "new"), Logger: slog.New(slog.DiscardHandler)}); err != nil {
			t.Fatal(err)
		}
		elsewhere.h, elsewhere.client = elsewhere.m.Wrap(elsewhere.h), other
		for key := range records(t, g) {
			lease, err := other.Acquire(t.Context(), key, nil)
			testkit.Must(t, err)
			testkit.Must(t, lease.Complete(t.Context(), mine, time.Hour))
		}
		isProblem(t, elsewhere.send(withKey("mine")), "answer-not-kept", 410)
	}},
	{"An encrypted answer belongs to its request", func(t *testing.T) {
		for name, o := range map[string]*idempotency.FingerprintOptions{"bytes": {}, "JSON": {CanonicalJSON: true}} {
			options := &idempotency.Options{KeyRing: ringOf(t, "new"), Fingerprint: *o}
			g := newRig(t, options, nil)
			first := g.send()
			isReplay(t, g.send(), first)
			for _, record := range records(t, g) {
				// As if the fingerprint of the row was removed, or that of another request written there.
				fresh := newRig(t, options, nil)
				storeRecord(t, fresh, `"k"`, record)
				isProblem(t, fresh.send(withBody("{}")), "answer-not-kept", 410)
				isProblem(t, fresh.send(withMethod("PUT")), "answer-not-kept", 410)
				isReplay(t, fresh.send(), first)
				if fresh.ran(0); t.Failed() {
					t.Fatal(name)
				}
			}
		}
	}},
	{"An encrypted answer ends with its retention", inBubble(func(t *testing.T) {
		log, logger := newLogger()
		g := newRig(t, &idempotency.Options{KeyRing: ringOf(t, "new"), Retention: time.Hour, MaxStored: 100, Logger: logger}, func(w http.ResponseWriter, r *http.Request) {
			switch r.Header.Get("Idempotency-Key") {
			case "short":
				w.Header().Set("Idempotency-Control", "max-age=5")
			case "oversize":
				_, _ = w.Write(make([]byte, 200))
			}
		})
		for key, retention := range map[string]time.Duration{"k": time.Hour, "short": 5 * time.Second, "oversize": time.Hour} {
			isFresh(t, g.send(withKey(key)), 200)
			old := []byte(nil)
			for name, record := range records(t, g) {
				if strings.HasSuffix(name, ":"+key) {
					old = record
				}
			}
			time.Sleep(retention - time.Millisecond)
			if w := g.send(withKey(key)); key != "oversize" && (w.Code != 200 || w.Header().Get("Idempotent-Replayed") != "true") {
				t.Errorf("%s: just before its end it is answered %d", key, w.Code)
			}
			time.Sleep(2 * time.Second)
			storeRecord(t, g, key, old) // which an operator of the database kept
			isProblem(t, g.send(withKey(key)), "answer-not-kept", 410)
			if e := g.last(); e.Err == nil && key != "oversize" || e.Err != nil && !strings.Contains(e.Err.Error(), "its retention ended at ") {
				t.Errorf("%s: observed %v", key, e.Err)
			}
		}
		g.ran(3)
		if !strings.Contains(log.String(), "its retention ended at ") {
			t.Errorf("the log is %s", log)
		}
	})},
	{"A key ring refuses answers that are not encrypted", func(t *testing.T) {
		plain := newRig(t, nil, nil)
		first := plain.send()
		log, logger := newLogger()
		strict := newRigOn(t, plain.store, &idempotency.Options{KeyRing: ringOf(t, "new"), Logger: logger}, nil)
		isProblem(t, strict.send(), "answer-not-kept", 410)
		if !strings.Contains(log.String(), "it is not encrypted, and the key ring does not have the word plaintext") {
			t.Errorf("the log is %s", log)
		}
		loose := newRigOn(t, plain.store, &idempotency.Options{KeyRing: ringOf(t, "new", "plaintext")}, nil)
		isReplay(t, loose.send(), first)
		strict.ran(0)
		loose.ran(0)
	}},
	{"The application may redact what is stored", func(t *testing.T) {
		redact := func(_ context.Context, a *idempotency.Answer) {
			a.Header.Del("X-Secret")
			a.Body = bytes.ReplaceAll(a.Body, []byte("4111"), []byte("*"))
			a.NotKept = bytes.Contains(a.Body, []byte("nothing"))
		}
		g := newRig(t, &idempotency.Options{Redact: redact}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Secret", "s")
			w.Header().Set("X-Other", "o")
			_, _ = fmt.Fprint(w, "card 4111 of ", r.Header.Get("Idempotency-Key"))
		})
		first, again := g.send(), g.send()
		if got := first.Body.String(); got != `card 4111 of "k"` || first.Header().Get("X-Secret") != "s" {
			t.Errorf("the first answer is %q, %v", got, first.Header())
		}
		if got := again.Body.String(); got != `card * of "k"` || again.Header()["X-Secret"] != nil || again.Header().Get("X-Other") != "o" {
			t.Errorf("the replay is %q, %v", got, again.Header())
		}
		isFresh(t, g.send(withKey("nothing")), 200)
		isProblem(t, g.send(withKey("nothing")), "answer-not-kept", 410)
		for key, record := range records(t, g) {
			if bytes.Contains(record, []byte("4111")) {
				t.Errorf("%s is stored as %q", key, record)
			}
		}
		g.ran(2)
	}},
}

// records returns the records of a rig's store, by the names of their keys.
func records(t *testing.T, g *rig) map[string][]byte {
	t.Helper()
	found := make(map[string][]byte)
	for e, err := range g.store.List(t.Context(), store.Query{Data: true}) {
		testkit.Must(t, err)
		found[e.Key.Name] = e.Record.Data
	}
	if len(found) == 0 {
		t.Fatal("the store has no record")
	}
	return found
}

// storeRecord stores a record under the key that a request with the Idempotency-Key has.
func storeRecord(t *testing.T, g *rig, key string, record []byte) {
	t.Helper()
	name := ""
	run := newRigOn(t, g.store, nil, func(w http.ResponseWriter, r *http.Request) {
		lease, _ := leaseOf(r)
		name = lease.Key().Name
		w.WriteHeader(http.StatusInternalServerError)
	})
	run.send(withKey(key))
	lease, err := g.client.Acquire(t.Context(), name, nil)
	testkit.Must(t, err)
	testkit.Must(t, lease.Complete(t.Context(), record, time.Hour))
}
