package dibs_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

func TestWaitersAreServedInOrder(t *testing.T) {
	for _, notified := range []bool{true, false} {
		t.Run(fmt.Sprintf("notified=%v", notified), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s dibs.Store = newStore(t)
				if !notified {
					s = struct{ dibs.Store }{s} // the contract alone
				}
				c := newClient(t, s, nil)
				var order []int
				var wg sync.WaitGroup
				first := acquire(t, c, "k", nil)
				for i := range 100 {
					wg.Go(func() {
						if err := c.Do(t.Context(), "k", func(context.Context) error {
							order = append(order, i)
							return nil
						}); err != nil {
							t.Error(err)
						}
					})
					synctest.Wait()
				}
				start := time.Now()
				testkit.Check(t, first.Release())
				wg.Wait()
				for i, n := range order {
					if i != n {
						t.Fatalf("served in the order %v", order)
					}
				}
				if took := time.Since(start); notified && took > 0 {
					t.Errorf("with wake-ups 100 hand-overs took %v", took)
				}
			})
		})
	}
}

// TestWaitersFarBackKeepTheirPlaces: waiters that ask seldom have a place that
// lasts as long, even before they have asked a second time.
func TestWaitersFarBackKeepTheirPlaces(t *testing.T) {
	inMemory(t, func(t *testing.T, _ *memstore.Store, c *dibs.Client) {
		first := acquire(t, c, "k", nil)
		var order []int
		var wg sync.WaitGroup
		join := func(i int) {
			wg.Go(func() {
				if err := c.Do(t.Context(), "k", func(context.Context) error {
					order = append(order, i)
					return nil
				}); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		for i := range 100 {
			join(i)
		}
		time.Sleep(1800 * time.Millisecond)
		join(100)
		time.Sleep(700 * time.Millisecond)
		testkit.Check(t, first.Release())
		wg.Wait()
		for i, n := range order {
			if i != n {
				t.Fatalf("served in the order %v", order)
			}
		}
	})
}

func TestGivingUpLeavesNoPlace(t *testing.T) {
	cause := errors.New("enough")
	tests := map[string]struct {
		options *dibs.AcquireOptions
		ctx     func(context.Context) (context.Context, context.CancelFunc)
		want    error
	}{
		"the wait is over": {
			options: &dibs.AcquireOptions{Wait: 7 * time.Second},
			want:    dibs.ErrHeld,
		},
		"the context ends": {
			ctx: func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeoutCause(ctx, 7*time.Second, cause)
			},
			want: cause,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
				lease := acquire(t, c, "k", nil)
				ctx, cancel := t.Context(), func() {}
				if test.ctx != nil {
					ctx, cancel = test.ctx(ctx)
				}
				defer cancel()
				start := time.Now()
				if _, err := c.Acquire(ctx, "k", test.options); !errors.Is(err, test.want) {
					t.Errorf("got %v, want %v", err, test.want)
				}
				if d := time.Since(start); d != 7*time.Second {
					t.Errorf("it took %v", d)
				}
				testkit.Check(t, lease.Release())
				empty(t, s)
			})
		})
	}
}

func TestWaiterOutlivesAStoreThatIsAway(t *testing.T) {
	withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
		lease := acquire(t, c, "k", nil)
		var wg sync.WaitGroup
		wg.Go(func() {
			testkit.Check(t, c.Do(t.Context(), "k", func(context.Context) error { return nil }))
		})
		synctest.Wait()
		s.set(func(string) error { return errCut }, nil)
		time.Sleep(7 * time.Second)
		s.set(nil, nil)
		time.Sleep(3 * time.Second)
		testkit.Check(t, lease.Release())
		wg.Wait()
		empty(t, s)
	})
}

func TestWaiterGivesUpOnAStoreThatStaysAway(t *testing.T) {
	withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
		lease := acquire(t, c, "k", nil)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := c.Do(t.Context(), "k", func(context.Context) error { return nil }); !errors.Is(err, dibs.ErrStore) {
				t.Errorf("got %v", err)
			}
		})
		synctest.Wait()
		start := time.Now()
		s.set(func(string) error { return errCut }, nil)
		wg.Wait()
		if d := time.Since(start); d > 12*time.Second {
			t.Errorf("it took %v", d)
		}
		s.set(nil, nil)
		_ = lease.Release()
		time.Sleep(time.Minute)
		empty(t, s)
	})
}

// TestHeldWhileTheStoreIsAway: an ErrHeld with no time left says that the key has no lease,
// so a waiter whose questions get no answer must not say that.
func TestHeldWhileTheStoreIsAway(t *testing.T) {
	withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
		lease := acquire(t, c, "k", nil)
		time.AfterFunc(time.Second, func() { s.set(func(string) error { return errCut }, nil) })
		time.AfterFunc(4*time.Second, func() { s.set(nil, nil) })
		_, err := c.Acquire(t.Context(), "k", &dibs.AcquireOptions{Wait: 3 * time.Second})
		held, ok := errors.AsType[*dibs.HeldError](err)
		if !ok || held.Left == 0 || held.Waited != 3*time.Second {
			t.Errorf("%v, want an ErrHeld that says for how long", err)
		}
		time.Sleep(2 * time.Second)
		release(t, lease)
		empty(t, s)
	})
}

// await acquires the key in the background, and returns once it waits.
func await(t *testing.T, c *dibs.Client, o *dibs.AcquireOptions) *acquiring {
	t.Helper()
	a := &acquiring{done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.lease, a.err = c.Acquire(t.Context(), "k", o)
	}()
	synctest.Wait()
	return a
}

// acquiring is an Acquire under way.
type acquiring struct {
	done  chan struct{}
	lease *dibs.Lease
	err   error
}

// over reports whether it has returned.
func (a *acquiring) over() bool {
	synctest.Wait()
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// got returns the lease, once it is there.
func (a *acquiring) got(t *testing.T) *dibs.Lease {
	t.Helper()
	<-a.done
	if a.err != nil {
		t.Fatal(a.err)
	}
	return a.lease
}

// acquire acquires a key, or ends the test.
func acquire(t *testing.T, c *dibs.Client, key string, o *dibs.AcquireOptions) *dibs.Lease {
	t.Helper()
	lease, err := c.Acquire(t.Context(), key, o)
	testkit.Must(t, err)
	return lease
}

func release(t *testing.T, l *dibs.Lease) {
	t.Helper()
	testkit.Check(t, l.Release())
}

// begins fails the test unless the waiter gets the key so much later, after that many claims
// of all. It releases it, and nothing is left.
func (a *acquiring) begins(t *testing.T, s *pusher, later time.Duration, claims int) {
	t.Helper()
	start := time.Now()
	lease := a.got(t)
	if d := time.Since(start); d != later {
		t.Errorf("it began %v later, want %v", d, later)
	}
	if n, _, _ := s.elements(); n != claims {
		t.Errorf("it took %d claims, want %d", n, claims)
	}
	release(t, lease)
	empty(t, s)
}
