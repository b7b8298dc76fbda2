package sqlitestore

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// woken collects the tokens that a store wakes.
func woken(t testing.TB, s *Store) <-chan store.Token {
	tokens := make(chan store.Token, 100)
	t.Cleanup(s.Notify(func(token store.Token, _ store.Answer) { tokens <- token }))
	return tokens
}

// The file is not read without waiters.
func TestNobodyWaits(t *testing.T) {
	s := openTest(t, testFile(t), nil, hostClock)
	woken(t, s)
	holder := lock("k")
	mustGrant(t, s, holder)
	granted, left, lapsed := lock("k"), lock("k"), lock("k")
	lapsed.PlaceTTL = 20 * time.Millisecond
	for _, c := range []*store.Claim{&granted, &left, &lapsed} {
		c.Mode = store.Queue
		wantState(t, "a waiter", claimOne(t, s, *c), store.Held)
	}
	mustSettle(t, s, release(holder))
	mustGrant(t, s, granted)
	mustSettle(t, s, release(left))
	w := &s.waiting
	testkit.Eventually(t, "the set of waiting tokens is empty", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.tokens) == 0
	})
	looks := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.looks
	}
	// At most the look that is under way comes after that, and one that finds no waiter.
	before := looks()
	for range 20 {
		mustGrant(t, s, lock("time passes"+store.NewToken().ID()))
	}
	if n := looks() - before; n > 2 {
		t.Errorf("the file was read %d times without waiters", n)
	}
}
