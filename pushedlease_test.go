package dibs_test

import (
	"context"
	"errors"
	"iter"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestPushedLeaseIsNotTrustedTooLong: whatever the TTL and whenever the line is cut,
// the holder never believes in the lease for longer than the store has it for. It is
// compared more often the less is left.
func TestPushedLeaseIsNotTrustedTooLong(t *testing.T) {
	for _, ttl := range []time.Duration{300 * time.Millisecond, 900 * time.Millisecond, store.PushedTTL, 30 * time.Second, time.Hour} {
		for _, cut := range []time.Duration{0, 200 * time.Millisecond, 350 * time.Millisecond, 5 * time.Second} {
			for _, joined := range []time.Duration{0, 40 * time.Millisecond, 400 * time.Millisecond} {
				synctest.Test(t, func(t *testing.T) {
					s, _, end, waiter := holdAndWait(t, &dibs.Options{TTL: ttl}, nil)
					time.Sleep(joined)
					end()
					lease := waiter.got(t)
					got := time.Now()
					time.Sleep(cut)
					if err := lease.Err(); err != nil {
						t.Errorf("TTL %v, pushed after %v: lost before the line was cut: %v", ttl, joined, err)
					}
					s.set(func(string) error { return errCut }, nil)
					for lease.Err() == nil && time.Since(got) < time.Minute {
						left := time.Duration(0)
						for e := range s.List(t.Context(), store.Query{ID: lease.ID()}) {
							left = e.Runs[0].Left
						}
						if trusted := time.Until(lease.Until()); trusted >= left {
							t.Fatalf("TTL %v, pushed after %v, cut after %v: trusted for %v more, and the store has it for %v",
								ttl, joined, cut, trusted, left)
						}
						time.Sleep(max(left/32, 7*time.Millisecond))
					}
					s.set(nil, nil)
					_ = lease.Release() // it may be lost
					time.Sleep(time.Minute)
					empty(t, abandonable{s})
				})
			}
		}
	}
}

// TestPushedLeaseIsRenewedInTime: a pushed lease lasts a second, and its TTL is long.
// A renewal that fails for a passing reason, or hangs, is tried again within it.
func TestPushedLeaseIsRenewedInTime(t *testing.T) {
	for name, fault := range map[string]func(*pusher){
		"no fault": func(*pusher) {},
		"a fault of half a second": func(s *pusher) {
			over := time.Now().Add(500 * time.Millisecond)
			s.set(func(verb string) error {
				if verb == "renew" && time.Now().Before(over) {
					return errCut
				}
				return nil
			}, nil)
		},
		"a renewal that hangs": func(s *pusher) {
			s.pushing.Lock()
			defer s.pushing.Unlock()
			s.hang = true
		},
	} {
		for _, ttl := range []time.Duration{dibs.DefaultTTL, time.Hour} {
			t.Run(name+", "+ttl.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s, _, end, waiter := holdAndWait(t, &dibs.Options{TTL: ttl}, nil)
					fault(s)
					end()
					lease := waiter.got(t)
					time.Sleep(10 * store.PushedTTL)
					if err := lease.Err(); err != nil {
						t.Errorf("lost: %v", err)
					}
					if _, renews, _ := s.elements(); renews == 0 {
						t.Error("it was not renewed")
					}
					release(t, lease)
					empty(t, s)
				})
			})
		}
	}
}

// TestPushedLeaseTakesItsOptions: Detach, StopTimeout and MaxLifetime hold as with any other lease. A
// StopTimeout that leaves nothing of PushedTTL makes the waiter ask.
func TestPushedLeaseTakesItsOptions(t *testing.T) {
	for name, test := range map[string]struct {
		options *dibs.AcquireOptions
		asks    int
		trusted time.Duration
		detach  bool
	}{
		"none":               {nil, 0, 979 * time.Millisecond, false},
		"detached":           {&dibs.AcquireOptions{Detach: true}, 0, 979 * time.Millisecond, true},
		"small timeout":      {&dibs.AcquireOptions{StopTimeout: 600 * time.Millisecond}, 0, 400 * time.Millisecond, false},
		"large timeout":      {&dibs.AcquireOptions{StopTimeout: 900 * time.Millisecond}, 1, dibs.DefaultTTL - 900*time.Millisecond, false},
		"max lifetime":       {&dibs.AcquireOptions{MaxLifetime: 300 * time.Millisecond}, 0, 300 * time.Millisecond, false},
		"larger than a turn": {&dibs.AcquireOptions{StopTimeout: 3 * time.Second}, 1, dibs.DefaultTTL - 3*time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newPusher(t)
				c := newClient(t, s, nil)
				_, end := s.hold(t, "k")
				ctx, cancel := context.WithCancel(t.Context())
				var lease *dibs.Lease
				var all sync.WaitGroup
				all.Go(func() {
					var err error
					if lease, err = c.Acquire(ctx, "k", test.options); err != nil {
						t.Error(err)
					}
				})
				synctest.Wait()
				end()
				all.Wait()
				if claims, _, _ := s.elements(); claims != 1+test.asks {
					t.Errorf("%d claims", claims)
				}
				if d := time.Until(lease.Until()); d != test.trusted {
					t.Errorf("trusted for %v, want %v", d, test.trusted)
				}
				cancel()
				if err := lease.Err(); (err == nil) != test.detach {
					t.Errorf("after the caller's context: %v", err)
				}
				testkit.Check(t, lease.Release())
				empty(t, s)
			})
		})
	}
}

// TestPushedAsTheWaitEnds: a grant that is pushed at the moment when its waiter
// gives up is taken or given back, and nothing in between.
func TestPushedAsTheWaitEnds(t *testing.T) {
	const wait = 600 * time.Millisecond
	for name, test := range map[string]struct {
		pushed time.Duration // after it began to wait
		answer time.Duration // how long the answers to claims take
	}{
		"at that moment":                   {wait, 0},
		"while it asks":                    {550 * time.Millisecond, 300 * time.Millisecond},
		"while it asks, and just answered": {550 * time.Millisecond, 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			taken, refused := 0, 0
			for range 100 {
				synctest.Test(t, func(t *testing.T) {
					s, _, end, waiter := holdAndWait(t, nil, &dibs.AcquireOptions{Wait: wait})
					s.set(nil, func(verb string) error {
						if verb == "claim" {
							time.Sleep(test.answer)
						}
						return nil
					})
					time.Sleep(test.pushed)
					end()
					<-waiter.done
					if waiter.err != nil {
						if !errors.Is(waiter.err, dibs.ErrHeld) {
							t.Error(waiter.err)
						}
						refused++
						time.Sleep(time.Second) // for answers under way
						empty(t, s)
						return
					}
					taken++
					time.Sleep(10 * time.Second)
					if err := waiter.lease.Err(); err != nil {
						t.Errorf("it was undone under its holder: %v", err)
					}
					testkit.Check(t, waiter.lease.Release())
					empty(t, s)
				})
			}
			t.Logf("%d taken, %d refused", taken, refused)
		})
	}
}

// TestPushedAsTheClientCloses: a grant pushed to a client that is closed meanwhile is
// given back.
func TestPushedAsTheClientCloses(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			s := newPusher(t)
			c, err := dibs.New(s, nil)
			testkit.Must(t, err)
			_, end := s.hold(t, "k")
			waiter := await(t, c, nil)
			var all sync.WaitGroup
			all.Go(end)
			all.Go(func() {
				testkit.Check(t, c.Close())
			})
			<-waiter.done
			if waiter.err == nil {
				release(t, waiter.lease)
			} else if !errors.Is(waiter.err, dibs.ErrClosed) {
				t.Error(waiter.err)
			}
			all.Wait()
			time.Sleep(2 * store.PushedTTL) // grants that were pushed after Close run out
			empty(t, abandonable{s})
		})
	}
}

// abandonable is a store of which what was abandoned does not count.
type abandonable struct{ *pusher }

func (s abandonable) List(ctx context.Context, q store.Query) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		for e, err := range s.pusher.List(ctx, q) {
			if e.Condition != store.ConditionAbandoned && !yield(e, err) {
				return
			}
		}
	}
}
