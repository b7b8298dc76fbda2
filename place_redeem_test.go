package dibs_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// reserve reserves a place for an hour.
func reserve(t *testing.T, c *dibs.Client) dibs.Place {
	t.Helper()
	p, _, err := c.Reserve(t.Context(), "k", time.Hour, nil)
	testkit.Must(t, err)
	return p
}

// redeem redeems a place whose turn has come.
func redeem(t *testing.T, c *dibs.Client, p dibs.Place) *dibs.Lease {
	t.Helper()
	lease, err := c.TryRedeem(t.Context(), p, nil)
	testkit.Must(t, err)
	return lease
}

// TestPlaceIsRedeemedByOneAtATime: a job that was handed to several workers runs
// once at a time. A later one is woken and joins at the end.
func TestPlaceIsRedeemedByOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		p := reserve(t, newClient(t, s, nil))
		const work = time.Minute + 230*time.Millisecond // not when they ask by themselves
		inside, runs := 0, 0
		start := time.Now()
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, c := range []*dibs.Client{newClient(t, s, nil), newClient(t, newFaulty(s), nil)} {
			for range 3 {
				wg.Go(func() {
					lease, err := c.Redeem(t.Context(), p, nil)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if inside++; inside != 1 {
						t.Errorf("%d at once", inside)
					}
					mu.Unlock()
					time.Sleep(work)
					mu.Lock()
					inside--
					runs++
					mu.Unlock()
					testkit.Check(t, lease.Release())
				})
			}
		}
		wg.Wait()
		if runs != 6 {
			t.Errorf("%d of 6 ran", runs)
		}
		if d := time.Since(start); d > 6*work+10*time.Millisecond {
			t.Errorf("they took %v for %v of work: wake-ups were lost", d, 6*work)
		}
		empty(t, s)
	})
}

// TestPlaceIsRedeemedAgain: however a worker fails, its job comes before jobs that
// were enqueued later, and learns what was done.
func TestPlaceIsRedeemedAgain(t *testing.T) {
	for name, fail := range map[string]func(*testing.T, *faulty, *dibs.Lease){
		"abandoned": func(t *testing.T, _ *faulty, l *dibs.Lease) {
			testkit.Check(t, l.Abandon(t.Context()))
		},
		"crashed": func(t *testing.T, line *faulty, l *dibs.Lease) {
			line.set(func(string) error { return errCut }, nil)
			<-l.Context().Done()
			time.Sleep(time.Minute)
		},
		"lost and released": func(t *testing.T, line *faulty, l *dibs.Lease) {
			line.set(func(string) error { return errCut }, nil)
			<-l.Context().Done()
			line.set(nil, nil)
			if err := l.Release(); !errors.Is(err, dibs.ErrLost) {
				t.Errorf("Release returned %v", err)
			}
			synctest.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t)
				line := newFaulty(s)
				c, worker := newClient(t, s, nil), newClient(t, line, nil)
				job := reserve(t, c)
				first := redeem(t, worker, job)
				testkit.Must(t, first.Save(t.Context(), []byte("half")))
				var order []string
				var wg sync.WaitGroup
				wg.Go(func() {
					err := c.Do(t.Context(), "k", func(context.Context) error {
						order = append(order, "the one behind")
						return nil
					})
					testkit.Check(t, err)
				})
				synctest.Wait()
				fail(t, line, first)
				time.Sleep(time.Minute)
				second := redeem(t, c, job)
				order = append(order, "the job")
				if second.Attempt() != 2 || string(second.Progress()) != "half" {
					t.Errorf("attempt %d with progress %q", second.Attempt(), second.Progress())
				}
				if second.ID() == first.ID() || second.Fence() <= first.Fence() {
					t.Error("the second attempt is the first one")
				}
				testkit.Check(t, second.Release())
				wg.Wait()
				if len(order) != 2 || order[0] != "the job" {
					t.Errorf("they ran in the order %q", order)
				}
				line.set(nil, nil)
				empty(t, s)
			})
		})
	}
}

// TestRedeemerGoesAway: a claim from a place whose caller went away while it was
// under way leaves the place as it was.
func TestRedeemerGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c, other := newClient(t, s, nil), newClient(t, s.Store, nil)
		job, behind := reserve(t, other), reserve(t, other)
		ctx, cancel := context.WithCancel(t.Context())
		gate := make(chan struct{})
		s.set(nil, func(string) error { <-gate; return nil })
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.Redeem(ctx, job, nil); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		})
		synctest.Wait()
		cancel()
		wg.Wait()
		if _, err := other.TryRedeem(t.Context(), job, nil); !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("before the grant is known: %v", err)
		}
		s.set(nil, nil)
		close(gate)
		synctest.Wait()
		if _, err := other.TryRedeem(t.Context(), behind, nil); !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("the place behind: %v", err)
		}
		lease := redeem(t, other, job)
		if lease.Attempt() != 1 {
			t.Errorf("attempt %d", lease.Attempt())
		}
		testkit.Check(t, lease.Release())
		testkit.Check(t, redeem(t, other, behind).Release())
		empty(t, s)
	})
}

// TestRedeemTakesItsOptions: Detach and StopTimeout hold for a lease from a place as
// with any other.
func TestRedeemTakesItsOptions(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		lease, err := c.Redeem(ctx, reserve(t, c), &dibs.RedeemOptions{AcquireOptions: dibs.AcquireOptions{TTL: 20 * time.Second, StopTimeout: 10 * time.Second, Detach: true}})
		testkit.Must(t, err)
		if d := time.Until(lease.Until()); d != 10*time.Second {
			t.Errorf("trusted for %v, want the TTL without the margin", d)
		}
		cancel()
		if err := lease.Err(); err != nil {
			t.Errorf("the lease ended with the caller's context: %v", err)
		}
		testkit.Check(t, lease.Release())
		empty(t, s)
	})
}

// TestPlaceIsCancelledUnderItsLease: to cancel a place leaves its lease alone.
func TestPlaceIsCancelledUnderItsLease(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		job := reserve(t, c)
		lease := redeem(t, c, job)
		testkit.Check(t, c.CancelPlace(t.Context(), job))
		time.Sleep(time.Hour)
		if err := lease.Err(); err != nil {
			t.Errorf("the worker lost its lease: %v", err)
		}
		if err := c.CancelPlace(t.Context(), job); !errors.Is(err, dibs.ErrLost) {
			t.Errorf("giving it up twice: %v", err)
		}
		testkit.Check(t, lease.Release())
		empty(t, s)
	})
}

// TestAnswersEndThePlace: a place that is redeemed when a record answers, or for something else than
// the key was used for, does not keep others from the key.
func TestAnswersEndThePlace(t *testing.T) {
	for name, c := range map[string]struct {
		asked dibs.Fingerprint
		want  error
	}{
		"done":     {dibs.Fingerprint{1}, dibs.ErrDone},
		"mismatch": {dibs.Fingerprint{2}, dibs.ErrMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, s *memstore.Store, client *dibs.Client) {
				first := acquire(t, client, "k", &dibs.AcquireOptions{Fingerprint: dibs.Fingerprint{1}})
				place := reserve(t, client)
				testkit.Must(t, first.Complete(t.Context(), nil, time.Hour))
				o := &dibs.RedeemOptions{AcquireOptions: dibs.AcquireOptions{Fingerprint: c.asked, MaxAge: dibs.AnyAge}}
				if _, err := client.Redeem(t.Context(), place, o); !errors.Is(err, c.want) {
					t.Errorf("got %v", err)
				}
				synctest.Wait()
				for e, err := range s.List(t.Context(), store.Query{Places: true}) {
					if err != nil || e.Reserved != 0 || len(e.Places) != 0 {
						t.Errorf("left behind: %+v, %v", e, err)
					}
				}
			})
		})
	}
}
