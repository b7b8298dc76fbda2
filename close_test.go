package dibs_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		c, err := dibs.New(s, nil)
		testkit.Must(t, err)
		lease := acquire(t, c, "k", nil)
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.Acquire(t.Context(), "k", nil); !errors.Is(err, dibs.ErrClosed) {
				t.Errorf("the waiter got %v", err)
			}
		})
		wg.Go(func() { // the holder stops when its context ends, after a while
			<-lease.Context().Done()
			if cause := context.Cause(lease.Context()); !errors.Is(cause, dibs.ErrClosed) {
				t.Errorf("the lease's context ended with %v", cause)
			}
			time.Sleep(time.Second)
			testkit.Check(t, lease.Release())
		})
		synctest.Wait()
		start := time.Now()
		testkit.Check(t, c.Close())
		if d := time.Since(start); d != time.Second {
			t.Errorf("Close took %v", d)
		}
		wg.Wait()
		empty(t, s)
		if err := c.Do(t.Context(), "k", func(context.Context) error { return nil }); !errors.Is(err, dibs.ErrClosed) {
			t.Errorf("a closed client answered %v", err)
		}
	})
}

// TestNothingIsRenewedAfterClose: not even what is due at that moment.
func TestNothingIsRenewedAfterClose(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			f := newFaulty(newStore(t))
			c, err := dibs.New(f, &dibs.Options{TTL: 15 * time.Second}) // renewed after 5 s
			testkit.Must(t, err)
			if _, err := c.Acquire(t.Context(), "k", nil); err != nil {
				t.Fatal(err)
			}
			if err := c.Close(); err == nil {
				t.Error("Close said nothing of the lease that is held")
			}
			_, before, _ := f.counts()
			time.Sleep(time.Second)
			if _, after, _ := f.counts(); after != before {
				t.Fatal("a lease was renewed after Close")
			}
		})
	}
}

// TestCloseGivesUpPlaces: every waiter has left the queue when Close returns.
func TestCloseGivesUpPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		lease, err := newClient(t, s, nil).Acquire(t.Context(), "k", nil)
		testkit.Must(t, err)
		c, err := dibs.New(s, nil)
		testkit.Must(t, err)
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if _, err := c.Acquire(t.Context(), "k", nil); !errors.Is(err, dibs.ErrClosed) {
					t.Errorf("the waiter got %v", err)
				}
			})
		}
		synctest.Wait()
		testkit.Check(t, c.Close())
		noWaiters(t, s)
		wg.Wait()
		testkit.Check(t, lease.Release())
	})
}

// directly is a faulty store that is called without batching.
type directly struct{ *faulty }

func (directly) Batching() store.Batching { return store.Batching{Direct: true} }

// TestCloseUndoesClaimsUnderWay: a claim that is granted while the client closes
// leaves no lease behind.
func TestCloseUndoesClaimsUnderWay(t *testing.T) {
	stores := map[string]func(*faulty) dibs.Store{
		"batched":  func(f *faulty) dibs.Store { return f },
		"directly": func(f *faulty) dibs.Store { return directly{f} },
	}
	for name, store := range stores {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t)
				f := newFaulty(s)
				f.set(nil, func(verb string) error {
					if verb == "claim" {
						time.Sleep(time.Second) // its answer is slow
					}
					return nil
				})
				c, err := dibs.New(store(f), nil)
				testkit.Must(t, err)
				var wg sync.WaitGroup
				wg.Go(func() {
					if _, err := c.Acquire(t.Context(), "k", nil); !errors.Is(err, dibs.ErrClosed) {
						t.Errorf("got %v", err)
					}
				})
				synctest.Wait()
				testkit.Check(t, c.Close())
				wg.Wait()
				empty(t, s)
			})
		})
	}
}

// TestCloseWaitsForSettlementsUnderWay: even if their callers do not wait any more. The
// store may be closed afterwards. (Found by proof/sim.)
func TestCloseWaitsForSettlementsUnderWay(t *testing.T) {
	for name, end := range map[string]func(context.Context, *dibs.Client, dibs.Place, *dibs.Lease) error{
		"give up": func(ctx context.Context, c *dibs.Client, p dibs.Place, _ *dibs.Lease) error {
			return c.CancelPlace(ctx, p)
		},
		"abandon": func(ctx context.Context, _ *dibs.Client, _ dibs.Place, l *dibs.Lease) error { return l.Abandon(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFaulty(newStore(t))
				c, err := dibs.New(f, &dibs.Options{TTL: time.Second})
				testkit.Must(t, err)
				place, _, err := c.Reserve(t.Context(), "place", time.Hour, nil)
				testkit.Must(t, err)
				lease := acquire(t, c, "lease", nil)
				under := 0
				f.set(func(verb string) error {
					if verb == "settle" {
						under++
						time.Sleep(3 * time.Second)
						under--
					}
					return nil
				}, func(verb string) error {
					if verb == "renew" {
						return errors.New("lost") // so that the lease is lost by then
					}
					return nil
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				if err := end(ctx, c, place, lease); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("the caller got %v", err)
				}
				<-lease.Context().Done()
				testkit.Check(t, c.Close())
				if under != 0 {
					t.Error("a settlement is under way after Close")
				}
			})
		})
	}
}

// TestCloseDoesNotWaitForEver: it says which leases are left, and nothing else.
func TestCloseDoesNotWaitForEver(t *testing.T) {
	for range 20 { // a select that could take either would be right now and then
		synctest.Test(t, func(t *testing.T) {
			c, err := dibs.New(newStore(t), &dibs.Options{TTL: time.Minute})
			testkit.Must(t, err)
			acquire(t, c, "k", nil)
			start := time.Now()
			err = c.Close()
			if err == nil || !strings.HasPrefix(err.Error(), "dibs: closed while 1 leases were held") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v; one lease was left, and nothing else", err)
			}
			if d := time.Since(start); d != 5*time.Second {
				t.Errorf("Close took %v", d)
			}
		})
	}
}

// TestUndoEndsWithTheClient: Close says how many claims could not be undone, and why.
func TestUndoEndsWithTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c, err := dibs.New(s, nil)
		testkit.Must(t, err)
		s.set(func(string) error { return errCut }, nil)
		if _, err := c.Acquire(t.Context(), "k", nil); !errors.Is(err, dibs.ErrStore) {
			t.Errorf("got %v", err)
		}
		if err := c.Close(); !errors.Is(err, errCut) || !strings.Contains(err.Error(), "1 claims could not be undone") {
			t.Errorf("Close said %v", err)
		}
		_, _, before := s.counts()
		time.Sleep(time.Hour)
		if _, _, after := s.counts(); after != before {
			t.Errorf("%d settlements were tried after Close", after-before)
		}
	})
}

// TestCloseCountsWhatIsBeingUndone: that the store has been asked does not mean
// that it has answered.
func TestCloseCountsWhatIsBeingUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFaulty(newStore(t))
		c, err := dibs.New(f, nil)
		testkit.Must(t, err)
		lease := acquire(t, c, "k", nil)
		f.set(func(verb string) error {
			time.Sleep(6 * time.Second)
			return errors.New("the store is away")
		}, nil)
		if err := lease.Release(); !errors.Is(err, dibs.ErrStore) {
			t.Error(err)
		}
		synctest.Wait()
		if err := c.Close(); err == nil || !strings.Contains(err.Error(), "1 claims") {
			t.Errorf("Close returned %v", err)
		}
	})
}
