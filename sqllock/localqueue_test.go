package sqllock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// Callers of one key are served in order; a caller that gives up is passed over, also in
// the moment in which its turn comes.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turns localQueues[string]
		testkit.Must(t, turns.enter(t.Context(), "a"))
		testkit.Must(t, turns.enter(t.Context(), "b"))
		came := make(chan int, 5)
		enough := errors.New("enough")
		stops := make([]context.CancelCauseFunc, 5)
		for i := range 5 {
			var ctx context.Context
			ctx, stops[i] = context.WithCancelCause(t.Context())
			go func() {
				if err := turns.enter(ctx, "a"); err != nil {
					if err != enough {
						t.Errorf("%d: %v", i, err)
					}
					i = -i
				}
				came <- i
			}()
			synctest.Wait()
		}
		stops[1](enough)
		synctest.Wait()
		turns.leave("a") // 0 comes
		synctest.Wait()
		turns.leave("a") // 2 comes, and gives up at the same time
		stops[2](enough)
		synctest.Wait()
		got := fmt.Sprint(<-came, <-came, <-came)
		if got == "-1 0 2" {
			turns.leave("a")
			synctest.Wait()
		} else if got != "-1 0 -2" {
			t.Errorf("they came in the order %v", got)
		}
		turns.leave("a")
		if got := fmt.Sprint(<-came, <-came); got != "3 4" {
			t.Errorf("then came %v", got)
		}
		turns.leave("a")
		turns.leave("b")
		if n := len(turns.at); n != 0 {
			t.Errorf("%d are left", n)
		}
	})
}

// A caller that gives up in the moment in which its turn comes passes it on, whichever it notices
// first.
func TestTurnThatNobodyTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 100 {
			var turns localQueues[string]
			testkit.Must(t, turns.enter(t.Context(), "a"))
			ctx, stop := context.WithCancel(t.Context())
			gone := make(chan error, 1)
			go func() { gone <- turns.enter(ctx, "a") }()
			synctest.Wait()
			stop()
			turns.leave("a")
			if err := <-gone; err == nil {
				turns.leave("a")
			}
			if n := len(turns.at); n != 0 {
				t.Fatal("the queue stands, and nobody is in front")
			}
		}
	})
}

// TestWaitersLeaveConnections: callers that wait for one key use one connection of the pool, so the
// holder gets one for its work.
func TestWaitersLeaveConnections(t *testing.T) {
	t.Parallel()
	a := newAdvisory(t, nil)
	a.db.SetMaxOpenConns(3) // the lock, the first waiter, and the work
	key := ownKey()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit)
	defer cancel()
	all := newBarrier(8)
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			all.wait(t)
			testkit.Check(t, a.Do(ctx, key, nil, func(ctx context.Context) error {
				_, err := a.db.ExecContext(ctx, "SELECT 1")
				return err
			}))
		})
	}
	callers.Wait()
}
