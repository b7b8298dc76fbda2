package dibs_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

// A caller with another number of permits than the holders waits in its turn until they
// have gone, and those behind it wait, too.
func TestPermitsThatDifferWaitInTurn(t *testing.T) {
	for name, c := range map[string]struct {
		held, wanted int
		notified     bool
	}{
		"more":               {1, 3, true},
		"fewer":              {3, 1, true},
		"without a notifier": {2, 5, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := newStore(t)
				var s dibs.Store = memory
				if !c.notified {
					s = struct{ dibs.Store }{memory}
				}
				client := newClient(t, s, nil)
				first := acquire(t, client, "k", &dibs.AcquireOptions{Permits: c.held})
				var order []string
				waiter := func(name string, permits int) <-chan struct{} {
					over := make(chan struct{})
					go func() {
						defer close(over)
						lease, err := client.Acquire(t.Context(), "k", &dibs.AcquireOptions{Permits: permits})
						if err != nil {
							t.Error(err)
							return
						}
						order = append(order, name)
						time.Sleep(time.Second)
						testkit.Check(t, lease.Release())
					}()
					synctest.Wait()
					return over
				}
				other := waiter("the other number", c.wanted)
				behind := waiter("the one behind", c.held)
				time.Sleep(time.Minute)
				if len(order) > 0 {
					t.Fatalf("%s was granted beside the first", order[0])
				}
				release(t, first)
				<-other
				<-behind
				if len(order) != 2 || order[0] != "the other number" {
					t.Errorf("granted in the order %q", order)
				}
				empty(t, memory)
			})
		})
	}
}

// What bounds the wait bounds this one, too. TryAcquire has its answer at once.
func TestPermitsThatDifferBoundTheWait(t *testing.T) {
	inMemory(t, func(t *testing.T, _ *memstore.Store, client *dibs.Client) {
		held := acquire(t, client, "k", &dibs.AcquireOptions{Permits: 2})
		for name, wait := range map[string]time.Duration{"none": 0, "a moment": time.Millisecond, "a minute": time.Minute} {
			start := time.Now()
			acquire := client.Acquire
			if wait == 0 {
				acquire = client.TryAcquire
			}
			_, err := acquire(t.Context(), "k", &dibs.AcquireOptions{Permits: 3, Wait: wait})
			if h, ok := errors.AsType[*dibs.HeldError](err); !ok || h.Waited != wait || time.Since(start) != wait {
				t.Errorf("%s: after %v: %v", name, time.Since(start), err)
			}
		}
		// It would wait for itself.
		if _, err := client.Acquire(held.Context(), "k", &dibs.AcquireOptions{Permits: 3}); !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("inside itself: %v", err)
		}
		release(t, held)
	})
}

// A holder may take several permits. One that takes all of them is alone, and is not
// starved by those that take one.
func TestWeight(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, client *dibs.Client) {
		var inside, most atomic.Int64
		cycle := func(weight int) func() {
			return func() {
				lease, err := client.Acquire(t.Context(), "k", &dibs.AcquireOptions{Permits: 10, Weight: weight})
				if err != nil {
					t.Error(err)
					return
				}
				n := inside.Add(int64(weight))
				if n > 10 {
					t.Errorf("%d of 10 permits are taken", n)
				}
				if n == 10 {
					most.Store(n)
				}
				time.Sleep(time.Second)
				inside.Add(-int64(weight))
				release(t, lease)
			}
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		for range 12 {
			go func() {
				for ctx.Err() == nil {
					cycle(1)()
				}
			}()
		}
		time.Sleep(10*time.Second + time.Millisecond)
		start := time.Now()
		cycle(10)()
		if d := time.Since(start); d > 4*time.Second { // the one that are inside, one turn of those before it, and its own
			t.Errorf("the writer had its turn after %v", d)
		}
		<-ctx.Done()
		synctest.Wait()
		time.Sleep(5 * time.Second)
		if most.Load() != 10 {
			t.Error("never all of the permits were taken")
		}
		empty(t, s)
	})
}

// A caller that holds permits of a key is refused at once if all that it holds leaves no
// room. What it has released does not count.
func TestPermitsThatTheCallerHolds(t *testing.T) {
	inMemory(t, func(t *testing.T, _ *memstore.Store, c *dibs.Client) {
		o := &dibs.AcquireOptions{Permits: 3}
		ctx := t.Context()
		var leases []*dibs.Lease
		for range 3 {
			lease, err := c.Acquire(ctx, "k", o)
			testkit.Must(t, err)
			leases, ctx = append(leases, lease), lease.Context()
		}
		start := time.Now()
		waiting, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		if _, err := c.Acquire(waiting, "k", o); !errors.Is(err, dibs.ErrHeld) || time.Since(start) > 0 {
			t.Errorf("a fourth: %v after %v", err, time.Since(start))
		}
		for _, lease := range leases {
			release(t, lease)
		}
		lease, err := c.Acquire(context.WithoutCancel(ctx), "k", nil)
		if err != nil {
			t.Fatalf("when it holds none: %v", err)
		}
		release(t, lease)
	})
}

func TestPermitsAreTheMost(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		var mu sync.Mutex
		inside, most := 0, 0
		var wg sync.WaitGroup
		for range 30 {
			wg.Go(func() {
				lease, err := c.Acquire(t.Context(), "k", &dibs.AcquireOptions{Permits: 3})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				inside++
				most = max(most, inside)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				inside--
				mu.Unlock()
				testkit.Check(t, lease.Release())
			})
		}
		synctest.Wait()
		_, err := c.TryAcquire(t.Context(), "k", nil)
		if !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("another number of permits: %v", err)
		}
		wg.Wait()
		if most != 3 {
			t.Errorf("%d at once, want 3", most)
		}
		empty(t, s)
	})
}
