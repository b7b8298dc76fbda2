package sqlitestore

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
)

// While the file is locked, claims are answered as far as that needs no writing.
func TestPeek(t *testing.T) {
	path := testFile(t)
	l := newLedger(t, path, &Options{LockWait: time.Minute})
	other := openTest(t, path, nil, hostClock)
	impatient := openTest(t, path, &Options{LockWait: 50 * time.Millisecond}, hostClock)
	done, unknown, waiter := lock("done"), lock("unknown"), lock("held")
	mustGrant(t, l.s, done)
	mustSettle(t, l.s, keep(done))
	unknown.AtMostOnce = true
	mustGrant(t, l.s, unknown)
	mustSettle(t, l.s, dibs.Settlement{Key: unknown.Key, Token: unknown.Token, Outcome: dibs.Abandon})
	printed := lock("printed")
	printed.Fingerprint = dibs.Fingerprint{1}
	mustGrant(t, l.s, printed)
	wantState(t, "a place", claimOne(t, l.s, reservation("reserved", 0)), dibs.Held)
	wantState(t, "a place with a Hold", claimOne(t, l.s, reservation("in the way", time.Hour)), dibs.Held)
	held := lock("held")
	tx, _ := l.begin(t.Context(), held)
	waiter.Mode = dibs.Queue

	differs := asked("printed")
	differs.Fingerprint = dibs.Fingerprint{2}
	several := lock("held")
	several.Permits = 2
	look := lock("free")
	look.Mode = dibs.Look
	again := held
	queue := asked("done")
	queue.Mode = dibs.Queue
	for _, test := range []struct {
		name  string
		claim dibs.Claim
		want  dibs.State // 0: it waits
	}{
		{"of a key that is held", asked("held"), dibs.Held},
		{"of a key that is done", asked("done"), dibs.Done},
		{"of a key that is done, from the queue", queue, dibs.Done},
		{"of a key that is unknown", asked("unknown"), dibs.Unknown},
		{"with another fingerprint", differs, dibs.Mismatch},
		{"with other permits", several, dibs.PermitsDiffer},
		{"that looks", look, dibs.Free},
		{"of a key that is reserved", lock("reserved"), dibs.Held},
		{"that puts an end to a place", lock("in the way"), 0},
		{"of a key that is free", lock("free"), 0},
		{"that queues", waiter, 0},
		{"of whoever holds the key", again, 0},
	} {
		if test.want == 0 {
			if err := impatient.Claim(t.Context(), []dibs.Claim{test.claim}, make([]dibs.Answer, 1)); !errors.Is(err, ErrLocked) {
				t.Errorf("%s: %v; it should wait", test.name, err)
			}
			continue
		}
		for _, s := range []*Store{l.s, other} {
			a := claimOne(t, s, test.claim)
			wantState(t, test.name, a, test.want)
			if test.want == dibs.Done && string(a.Record.Data) != "answer" {
				t.Errorf("%s: the record is %q", test.name, a.Record.Data)
			}
		}
	}
	if err := tx.Commit(t.Context(), keep(held)); err != nil {
		t.Fatal(err)
	}
	mustGrant(t, l.s, lock("free"))
}

// While a request's transaction has the file locked, its duplicates are told that it
// runs, or wait, and other answers are replayed.
func TestDuplicatesOfATransaction(t *testing.T) {
	l := newLedger(t, testFile(t), &Options{Shared: true})
	inside, goOn := make(chan struct{}, 1), make(chan struct{})
	serve := func(wait time.Duration) func(key string) *httptest.ResponseRecorder {
		m, err := idempotency.New(l.c, &idempotency.Options{Transactor: l.tr, Wait: wait})
		if err != nil {
			t.Fatal(err)
		}
		h := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			tx, _ := Tx(r.Context())
			k := r.Header.Get("Idempotency-Key")
			if _, err := book(r.Context(), tx, k); err != nil {
				t.Error(err)
			}
			if k == "slow" {
				inside <- struct{}{}
				<-goOn
			}
			w.WriteHeader(http.StatusCreated)
		}))
		return func(key string) *httptest.ResponseRecorder {
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("{}"))
			r.Header.Set("Idempotency-Key", key)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w
		}
	}
	hasty, patient := serve(0), serve(time.Minute)
	if w := hasty("early"); w.Code != http.StatusCreated {
		t.Fatal(w.Code, w.Body)
	}
	var requests sync.WaitGroup
	requests.Go(func() {
		if w := hasty("slow"); w.Code != http.StatusCreated {
			t.Error(w.Code, w.Body)
		}
	})
	<-inside
	for range 3 {
		if w := hasty("slow"); w.Code != http.StatusConflict {
			t.Errorf("a duplicate meanwhile: %d %s", w.Code, w.Body)
		}
		if w := hasty("early"); w.Code != http.StatusCreated || w.Header().Get("Idempotent-Replayed") != "true" {
			t.Errorf("a replay meanwhile: %d %s", w.Code, w.Body)
		}
	}
	for range 3 {
		requests.Go(func() {
			if w := patient("slow"); w.Code != http.StatusCreated || w.Header().Get("Idempotent-Replayed") != "true" {
				t.Errorf("a duplicate that waits: %d %s", w.Code, w.Body)
			}
		})
	}
	eventually(t, "the duplicates wait", func() bool { return l.s.queued() == 3 })
	close(goOn)
	requests.Wait()
	l.want("slow", 1)
	l.want("early", 1)
}
