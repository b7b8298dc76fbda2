package sqlitestore

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs"
)

// reservation is a claim for a place that stands for a minute.
func reservation(name string, hold time.Duration) dibs.Claim {
	c := lock(name)
	c.Mode, c.TTL, c.Hold = dibs.Reserve, 0, hold
	return c
}

// Who waits behind a place that nobody redeems is woken when its Hold is over: in the
// process that was first kept by it, and in one that has asked since. (Store time stands
// still until then, so that the place outlasts whatever the machine does.)
func TestWakeWhenAHoldIsOver(t *testing.T) {
	path := testFile(t)
	c := newTestClock("a", time.Hour)
	s, other := openTest(t, path, nil, c.clock()), openTest(t, path, nil, c.clock())
	elsewhere := openTest(t, path, nil, c.clock())
	const hold = 20 * time.Millisecond
	for _, by := range []*Store{s, other} {
		tokens := woken(t, by)
		waiter := lock("k")
		waiter.Mode = dibs.Queue
		wantState(t, "a place", claimOne(t, elsewhere, reservation("k", hold)), dibs.Held)
		if by != s {
			wantState(t, "a stranger", claimOne(t, s, lock("k")), dibs.Held)
		}
		wantState(t, "the waiter", claimOne(t, by, waiter), dibs.Held)
		receive(t, "the end of the place", tokens, waiter.Token)
		c.pass(hold)
		mustGrant(t, by, waiter)
		mustSettle(t, by, release(waiter))
	}
}

// A claim that is refused writes only if it is the first that a place is in the way of.
func TestRefusalsWriteOnce(t *testing.T) {
	path := testFile(t)
	s := openTest(t, path, &Options{PruneEvery: -1}, hostClock)
	wantState(t, "a place", claimOne(t, s, reservation("k", time.Hour)), dibs.Held)
	conn := sqlite(t, path)
	version := func() int64 {
		v, err := conn.Query("PRAGMA data_version")
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	look := lock("k")
	look.Mode = dibs.Look
	for i, test := range []struct {
		claim  dibs.Claim
		writes bool
	}{
		{look, false}, {lock("k"), true}, {lock("k"), false}, {look, false}, {lock("k"), false},
	} {
		before := version()
		wantState(t, "a claim", claimOne(t, s, test.claim), dibs.Held)
		if wrote := version() != before; wrote != test.writes {
			t.Errorf("claim %d: wrote: %v, want %v", i, wrote, test.writes)
		}
	}
}
