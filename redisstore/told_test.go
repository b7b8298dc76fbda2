package redisstore

import (
	"errors"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
)

// TestTellsNobodyThatClashes: one who does something else than another holder is
// not told a grant, and is answered so when it asks.
func TestTellsNobodyThatClashes(t *testing.T) {
	t.Parallel()
	s := open(t, ownURL(), nil)
	w := newWords(t, s)
	two := func(c *dibs.Claim) { c.Permits = 2 }
	does := func(what byte) func(*dibs.Claim) {
		return func(c *dibs.Claim) { c.Fingerprint = dibs.Fingerprint{what} }
	}
	for start := time.Now(); ; {
		a, b := lock("k", two), lock("k", two)
		this, that := lock("k", two, queued, does(1)), lock("k", two, queued, does(2))
		mustGrant(t, s, a)
		mustGrant(t, s, b)
		for _, c := range []dibs.Claim{this, that} {
			if a, err := claim(t, s, c); err != nil || a.State != dibs.Held {
				t.Fatalf("a waiter was answered %+v, %v", a, err)
			}
		}
		mustSettle(t, s, a, dibs.Release)
		told := w.next(this.Token).State == dibs.Granted
		mustGrant(t, s, this)
		mustSettle(t, s, b, dibs.Release)
		if word := w.next(that.Token); word.State != 0 {
			t.Errorf("one that does something else was told %+v", word)
		}
		if a, err := claim(t, s, that); err != nil || a.State != dibs.Mismatch {
			t.Errorf("one that does something else was answered %+v, %v", a, err)
		}
		mustSettle(t, s, this, dibs.Release)
		if told || t.Failed() {
			return
		}
		if time.Since(start) > limit {
			t.Fatal("nobody is ever told a grant")
		}
	}
}

// TestNoReplica: with none at all nothing is granted, and the error says how many
// there have to be.
func TestNoReplica(t *testing.T) {
	t.Parallel()
	s := open(t, ownURL(), &Options{Replicas: 2, ReplicaWait: 50 * time.Millisecond})
	claims := []dibs.Claim{lock("a"), lock("b"), lock("c")}
	answers := make([]dibs.Answer, len(claims))
	if err := s.Claim(t.Context(), claims, answers); err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		if !errors.Is(a.Err, ErrNotReplicated) || a.State != 0 {
			t.Errorf("claim %d was answered %+v", i, a)
		}
	}
	if left := leftover(t, sharedRedis(), s.Prefix()); len(left) > 0 {
		t.Errorf("%q was left", left)
	}
}

// words are what the waiters of a store are told, by token.
type words struct {
	t     *testing.T
	heard chan word
	early map[dibs.Token]dibs.Answer
}

type word struct {
	token  dibs.Token
	answer dibs.Answer
}

func newWords(t *testing.T, s *Store) *words {
	w := &words{t: t, heard: make(chan word, 1000), early: map[dibs.Token]dibs.Answer{}}
	t.Cleanup(s.Notify(func(token dibs.Token, a dibs.Answer) { w.heard <- word{token, a} }))
	return w
}

// next returns the next word to a token.
func (w *words) next(token dibs.Token) dibs.Answer {
	w.t.Helper()
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		if a, ok := w.early[token]; ok {
			delete(w.early, token)
			return a
		}
		select {
		case heard := <-w.heard:
			w.early[heard.token] = heard.answer
		case <-late.C:
			w.t.Fatal("a waiter was told nothing")
		}
	}
}
