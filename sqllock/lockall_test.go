package sqllock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// Several on one session, whatever the order in which they are given.
func TestAdvisoryLockAll(t *testing.T) {
	t.Parallel()
	keys := []AdvisoryKey{ownKey(), PairKey(1, 2), ownKey(), ownKey()}
	backwards := []AdvisoryKey{keys[3], keys[2], keys[1], keys[0], keys[0]}
	var inside, most atomic.Int64
	var all sync.WaitGroup
	for i := range 4 {
		a := newAdvisory(t, nil)
		all.Go(func() {
			for range 5 {
				l, err := a.LockAll(t.Context(), [][]AdvisoryKey{keys, backwards}[i%2], nil)
				if err != nil {
					t.Error(err)
					return
				}
				most.Store(max(most.Load(), inside.Add(1)))
				inside.Add(-1)
				testkit.Check(t, l.Unlock())
			}
		})
	}
	all.Wait()
	if most.Load() != 1 {
		t.Errorf("%d were inside at once", most.Load())
	}
	a := newAdvisory(t, nil)
	if _, err := a.LockAll(t.Context(), nil, nil); err == nil {
		t.Error("no keys were accepted")
	}
	err := a.Do(t.Context(), keys[3], nil, func(context.Context) error {
		_, err := a.LockAll(t.Context(), keys, &LockOptions{Wait: 20 * time.Millisecond})
		return err
	})
	if !errors.Is(err, dibs.ErrHeld) {
		t.Errorf("one of them is held: %v", err)
	}
	for _, key := range keys {
		if n := advisoryLocks(t, key); n != 0 {
			t.Errorf("%v: %d have it still", key, n)
		}
	}
}

// A circle with a session that takes the locks in another order.
func TestAdvisoryDeadlock(t *testing.T) {
	t.Parallel()
	a := newAdvisory(t, nil)
	low, high := IntKey(owned.Add(1)), IntKey(1<<40+owned.Add(1))
	foreign, err := a.db.Conn(t.Context())
	testkit.Must(t, err)
	defer foreign.Close()
	mustExec(t, foreign, "SET deadlock_timeout = '1h'") // so the other session gets the error
	mustExec(t, foreign, "SELECT pg_advisory_lock("+high.String()+")")
	got := make(chan error, 1)
	go func() {
		_, err := a.LockAll(t.Context(), []AdvisoryKey{low, high}, nil)
		got <- err
	}()
	testkit.Eventually(t, "it waits", func() bool { return advisoryLocks(t, high) == 2 })
	mustExec(t, foreign, "SELECT pg_advisory_lock("+low.String()+")")
	if err := <-got; !errors.Is(err, ErrDeadlock) {
		t.Error(err)
	}
	mustExec(t, foreign, "SELECT pg_advisory_unlock_all()")
	testkit.Eventually(t, "nothing is left", func() bool { return advisoryLocks(t, low)+advisoryLocks(t, high) == 0 })
}
