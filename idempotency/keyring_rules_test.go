package idempotency_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
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

// ringKey returns a key for tests.
func ringKey(c byte) []byte { return bytes.Repeat([]byte{c}, 32) }

// ringOf returns a ring of keys that are made from their IDs. The first is the current one, or
// Plaintext.
func ringOf(t testing.TB, ids ...string) *idempotency.KeyRing {
	t.Helper()
	keys := make(map[string][]byte)
	for _, id := range ids {
		if keys[id] = ringKey(id[0]); id == idempotency.Plaintext {
			keys[id] = nil
		}
	}
	r, err := idempotency.NewKeyRing(ids[0], keys)
	testkit.Must(t, err)
	return r
}

// storedUnder is the key of the records in these tests.
var storedUnder = dibs.Key{Namespace: "shop", Name: "http:scope:k"}

// asked is the fingerprint of their requests.
var asked = dibs.Fingerprint{1, 2, 3}

func TestKeyRingRoundTrip(t *testing.T) {
	r := ringOf(t, "new", "old")
	for _, n := range []int{0, 1, 100, 100_000} {
		record := bytes.Repeat([]byte("r"), n)
		encrypted := r.Encrypt(storedUnder, asked, time.Hour, record)
		if id, ok := idempotency.EncryptedWith(encrypted); id != "new" || !ok || n > 1 && bytes.Contains(encrypted, record) {
			t.Errorf("%d bytes: encrypted with %q, %v", n, id, ok)
		}
		if bytes.Equal(encrypted, r.Encrypt(storedUnder, asked, time.Hour, record)) {
			t.Errorf("%d bytes: two records are the same, so the nonce is", n)
		}
		if got, err := r.Decrypt(storedUnder, asked, encrypted); err != nil || !bytes.Equal(got, record) {
			t.Errorf("%d bytes: %d came back, %v", n, len(got), err)
		}
	}
}

func TestKeyRingRefusesToDecrypt(t *testing.T) {
	old := ringOf(t, "old")
	record := old.Encrypt(storedUnder, asked, time.Hour, []byte("HTTP/1.1 200 OK\r\n\r\n"))
	isRefused := func(what string, r *idempotency.KeyRing, key dibs.Key, record []byte, want string) {
		t.Helper()
		if got, err := r.Decrypt(key, asked, record); !errors.Is(err, idempotency.ErrRecord) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v; want %s", what, got, err, want)
		}
	}
	const missing = `"old", which the key ring does not have`
	isRefused("another ring", ringOf(t, "new"), storedUnder, record, missing)
	isRefused("no ring", nil, storedUnder, record, missing)
	same, err := idempotency.NewKeyRing("old", map[string][]byte{"old": ringKey('x')})
	testkit.Must(t, err)
	isRefused("another key with the ID", same, storedUnder, record, "another key had this ID")
	for _, key := range []dibs.Key{
		{Namespace: "shop", Name: "http:scope:l"},
		{Namespace: "sho", Name: "phttp:scope:k"}, // the same bytes in all
		{Name: "shophttp:scope:k"},
		{Namespace: "shed", Name: "http:scope:k"},
		{},
	} {
		isRefused(fmt.Sprintf("moved to %q", key), old, key, record, "moved")
	}
	if got, err := old.Decrypt(storedUnder, dibs.Fingerprint{1, 2}, record); !errors.Is(err, idempotency.ErrRecord) {
		t.Errorf("for another request: %q, %v", got, err)
	}
	if got, err := old.Decrypt(storedUnder, dibs.Fingerprint{}, record); !errors.Is(err, idempotency.ErrRecord) {
		t.Errorf("for a request without a fingerprint: %q, %v", got, err)
	}
	later := []byte(strings.Replace(string(record), "/old/", "/old/9", 1))
	isRefused("made to last", old, storedUnder, later, "changed")
	over := old.Encrypt(storedUnder, asked, -3*time.Second, nil)
	isRefused("put back", old, storedUnder, over, "its retention ended at 2")
	head := bytes.IndexByte(record, '\n') + 1
	for i := head; i < len(record); i++ {
		changed := bytes.Clone(record)
		changed[i] ^= 1
		isRefused(fmt.Sprintf("byte %d changed", i), old, storedUnder, changed, "changed")
		isRefused(fmt.Sprintf("cut to %d bytes", i), old, storedUnder, record[:i], "changed")
	}
	renamed := bytes.Replace(record, []byte("old"), []byte("odd"), 1)
	isRefused("another ID of the same key", ringOf(t, "odd"), storedUnder, renamed, "changed")
	if _, err := idempotency.DecodeAnswer(record, 0); !errors.Is(err, idempotency.ErrRecord) || !strings.Contains(err.Error(), `"old"`) {
		t.Errorf("decoded without a ring: %v", err)
	}
	for _, text := range []string{"GCM/", "GCM/\n", "GCM/old", "GCM/o d\n", "GCM/old\n", "GCM/old/x\n", "GCM/" + strings.Repeat("o", 33) + "/1\n"} {
		if _, ok := idempotency.EncryptedWith([]byte(text)); ok {
			t.Errorf("%q is encrypted", text)
		}
		if _, err := idempotency.DecodeAnswer([]byte(text), 0); !errors.Is(err, idempotency.ErrRecord) {
			t.Errorf("%q is an answer: %v", text, err)
		}
	}
}

func TestKeyRingRefused(t *testing.T) {
	encoded := func(n int) string { return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("s"), n)) }
	tests := []struct{ text, want string }{
		{"", "has no key"},
		{" \n", "has no key"},
		{"plaintext", "has no key"},
		{"plaintext:" + encoded(32), `"plaintext" cannot have a key`},
		{"plaintext plaintext a:" + encoded(32), `two keys with the ID "plaintext"`},
		{"a:" + encoded(32) + " Plaintext", "key 2 is not of the form ID:KEY"},
		{"a:" + encoded(31), `"a" has 31 bytes; it must have 32`},
		{"a:" + encoded(33), `"a" has 33 bytes`},
		{"a:", `"a" has 0 bytes`},
		{"a:" + encoded(32) + " b:" + encoded(16), `"b" has 16 bytes`},
		{"a:" + encoded(32) + "\na:" + encoded(32), `two keys with the ID "a"`},
		{"a:" + encoded(32)[1:], `"a" is not base64`},
		{encoded(32), "key 1 is not of the form ID:KEY"},
		{"a:" + encoded(32) + " :" + encoded(32), "key 2: an ID must have"},
		{encoded(32) + ":a", "key 1: an ID must have"},
		{strings.Repeat("73", 32) + ":a", "key 1: an ID must have"},
	}
	for _, test := range tests {
		_, err := idempotency.ParseKeyRing(test.text)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %v; want %s", test.text, err, test.want)
		} else if strings.Contains(err.Error(), encoded(32)[:8]) || strings.Contains(err.Error(), "7373") {
			t.Errorf("the error has the key: %v", err)
		}
	}
	for _, text := range []string{"new:" + encoded(32) + "\n old:" + encoded(32) + "\n", "a:" + encoded(32) + " plaintext", "plaintext a:" + encoded(32)} {
		if _, err := idempotency.ParseKeyRing(text); err != nil {
			t.Error(err)
		}
	}
	if _, err := idempotency.NewKeyRing("new", map[string][]byte{"old": ringKey('o')}); err == nil || !strings.Contains(err.Error(), "does not have its current key") {
		t.Errorf("without the current key: %v", err)
	}
	if _, err := idempotency.NewKeyRing("", map[string][]byte{"old": ringKey('o')}); err == nil || !strings.Contains(err.Error(), "does not have its current key") {
		t.Errorf("with an empty current key: %v", err)
	}
	if _, err := idempotency.NewKeyRing("a b", map[string][]byte{"a b": ringKey('o')}); err == nil {
		t.Error("an ID with a space is accepted")
	}
	if _, err := idempotency.New(new(dibs.Client), &idempotency.Options{KeyRing: new(idempotency.KeyRing)}); err == nil || !strings.Contains(err.Error(), "Options.KeyRing") {
		t.Errorf("an empty ring: %v", err)
	}
}

// TestKeyRingIsConcurrent is for the race detector, too.
func TestKeyRingIsConcurrent(t *testing.T) {
	r := ringOf(t, "new", "old")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			key := dibs.Key{Name: fmt.Sprint("key ", i)}
			for j := range 100 {
				record := fmt.Append(nil, "record ", i, j)
				if got, err := r.Decrypt(key, asked, r.Encrypt(key, asked, time.Hour, record)); err != nil || !bytes.Equal(got, record) {
					t.Errorf("%q came back as %q, %v", record, got, err)
				}
			}
		})
	}
	wg.Wait()
}

// TestDuplicatesGetTheDecryptedAnswer: even if they wait in the process that runs the request.
func TestDuplicatesGetTheDecryptedAnswer(t *testing.T) {
	const duplicates = 20
	release := make(chan struct{})
	options := &idempotency.Options{KeyRing: ringOf(t, "new"), Wait: time.Minute}
	g := newRig(t, options, func(w http.ResponseWriter, r *http.Request) {
		<-release
		_, _ = fmt.Fprint(w, "the answer")
	})
	var wg sync.WaitGroup
	for range duplicates {
		wg.Go(func() {
			if w := g.send(); w.Code != 200 || w.Body.String() != "the answer" {
				t.Errorf("answered %d %q", w.Code, w.Body)
			}
		})
	}
	close(release)
	wg.Wait()
	g.ran(1)
}

// TestKeyRingWithByteOrderMark: the mark that some editors write is not part of the first ID.
func TestKeyRingWithByteOrderMark(t *testing.T) {
	const key = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
	for _, text := range []string{"\ufeffa:" + key + "\r\n", "\ufeffplaintext\na:" + key} {
		if _, err := idempotency.ParseKeyRing(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}
