package dibs_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
)

// TestToldGrantNeedsNoClaim: a contended cycle takes two calls, one to join and
// one to release; and whoever looks on is told what happened.
func TestToldGrantNeedsNoClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 30
		s := newTeller(t)
		var mu sync.Mutex
		events := map[dibs.EventKind][]dibs.Event{}
		c := newClient(t, s, &dibs.Options{Observe: func(_ context.Context, e dibs.Event) {
			mu.Lock()
			defer mu.Unlock()
			events[e.Kind] = append(events[e.Kind], e)
		}})
		_, end := s.hold(t, "k")
		var all sync.WaitGroup
		var order []int
		inside, last := 0, uint64(0)
		for i := range n {
			all.Go(func() {
				lease, err := c.Acquire(t.Context(), "k", nil)
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, i)
				if inside++; inside != 1 || lease.Fence() <= last || lease.Attempt() != 1 || lease.Progress() != nil {
					t.Errorf("%d at once, fence %d after %d, attempt %d", inside, lease.Fence(), last, lease.Attempt())
				}
				last = lease.Fence()
				time.Sleep(5 * time.Millisecond)
				inside--
				release(t, lease)
			})
			synctest.Wait()
		}
		start := time.Now()
		end()
		all.Wait()
		if d := time.Since(start); d != n*5*time.Millisecond {
			t.Errorf("%d turns of 5 ms took %v", n, d)
		}
		for i, who := range order {
			if i != who {
				t.Fatalf("they came in the order %v", order)
			}
		}
		if claims, renews, settles := s.elements(); claims != n || renews != 0 || settles != n {
			t.Errorf("%d turns took %d claims, %d renewals and %d settlements", n, claims, renews, settles)
		}
		if got, want := c.Stats(), (dibs.Stats{Acquired: n, Waited: n, Released: n}); got != want {
			t.Errorf("counted %+v, want %+v", got, want)
		}
		fences := s.fences()
		for kind, held := range map[dibs.EventKind]time.Duration{dibs.EventAcquired: 0, dibs.EventReleased: 5 * time.Millisecond} {
			if len(events[kind]) != n {
				t.Errorf("%d events that it was %s", len(events[kind]), kind)
			}
			for i, e := range events[kind] {
				turn := time.Duration(i) * 5 * time.Millisecond
				if e.Waited != turn || e.Held != held || !fences[e.Fence] || e.Attempt != 1 || e.ID() == "" {
					t.Errorf("event %d: %+v, want %s after %v for %v", i, e, kind, turn, held)
				}
			}
		}
		if len(events) != 2 {
			t.Errorf("events of %d kinds", len(events))
		}
		empty(t, s)
	})
}

// TestGrantThatIsToldBeforeTheAnswer: a waiter that is told its grant before it
// has heard that it waits begins at once.
func TestGrantThatIsToldBeforeTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTeller(t)
		c := newClient(t, s, nil)
		_, end := s.hold(t, "k")
		s.set(nil, func(string) error { time.Sleep(50 * time.Millisecond); return nil })
		waiter := await(t, c, nil)
		s.set(nil, nil)
		end()
		waiter.begins(t, s, 50*time.Millisecond, 1)
	})
}

// TestLateGrantIsNotBelieved: a grant that reaches the waiter (or that it comes to
// look at) when little of its time is left, or none, makes it ask.
func TestLateGrantIsNotBelieved(t *testing.T) {
	const made = 100 * time.Millisecond // after the waiter was answered
	for late, want := range map[time.Duration]struct {
		asks    int
		attempt int
	}{
		0:                         {0, 1},
		600 * time.Millisecond:    {0, 1},
		740 * time.Millisecond:    {1, 1}, // its claim gets the same grant
		made + dibs.PushedTTL - 1: {1, 1},
		made + dibs.PushedTTL:     {1, 2}, // the grant has run out
		3250 * time.Millisecond:   {1, 2}, // not when it asks by itself
	} {
		t.Run(late.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTeller(t)
				c := newClient(t, s, nil)
				_, end := s.hold(t, "k")
				waiter := await(t, c, nil)
				answered := time.Now()
				s.set(func(string) error { return errCut }, nil) // it cannot ask by itself
				s.holdBack()
				time.Sleep(made)
				end()
				synctest.Wait()
				time.Sleep(max(0, late-made))
				s.set(nil, nil)
				claims, _, _ := s.elements()
				s.tellLate()
				lease := waiter.got(t)
				after, _, _ := s.elements()
				if after-claims != want.asks || lease.Attempt() != want.attempt {
					t.Errorf("%d claims, attempt %d; want %d and %d", after-claims, lease.Attempt(), want.asks, want.attempt)
				}
				if trusted := lease.Until().Sub(answered); want.asks == 0 && trusted != 979*time.Millisecond {
					t.Errorf("trusted until %v after the last answer", trusted)
				}
				if want.attempt == 1 && !s.fences()[lease.Fence()] {
					t.Error("it is another grant")
				}
				release(t, lease)
				empty(t, s)
			})
		})
	}
}

// TestOldGrantIsNotBelieved: a grant that was long on its way reaches a waiter
// that has lost it and waits anew. Somebody else holds the key, perhaps with another
// number of permits.
func TestOldGrantIsNotBelieved(t *testing.T) {
	for _, permits := range []int{1, 2} {
		t.Run(fmt.Sprint(permits, " permits"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTeller(t)
				c := newClient(t, s, nil)
				_, end := s.hold(t, "k")
				waiter := await(t, c, nil)
				s.set(func(string) error { return errCut }, nil)
				s.holdBack()
				end()
				time.Sleep(dibs.PushedTTL + 10*time.Millisecond) // what was told has run out
				other, end := s.holdOne(t, "k", permits)
				s.set(nil, nil)
				time.Sleep(dibs.PushedTTL * 3 / 4)
				claims, _, _ := s.elements()
				s.tellLate()
				synctest.Wait()
				if waiter.over() {
					t.Fatalf("the waiter took an old grant: %v", waiter.err)
				}
				if after, _, _ := s.elements(); after != claims+1 {
					t.Errorf("it asked %d times", after-claims)
				}
				end()
				lease := waiter.got(t)
				if lease.Fence() <= other || lease.Attempt() != 1 {
					t.Errorf("fence %d after %d, attempt %d", lease.Fence(), other, lease.Attempt())
				}
				release(t, lease)
				empty(t, s)
			})
		})
	}
}

// TestToldLeaseIsNotTrustedTooLong: whatever the TTL and whenever the line is cut,
// the holder never believes in the lease for longer than the store has it for. It is
// compared more often the less is left.
func TestToldLeaseIsNotTrustedTooLong(t *testing.T) {
	for _, ttl := range []time.Duration{300 * time.Millisecond, 900 * time.Millisecond, dibs.PushedTTL, 30 * time.Second, time.Hour} {
		for _, cut := range []time.Duration{0, 200 * time.Millisecond, 350 * time.Millisecond, 5 * time.Second} {
			for _, joined := range []time.Duration{0, 40 * time.Millisecond, 400 * time.Millisecond} {
				synctest.Test(t, func(t *testing.T) {
					s := newTeller(t)
					c := newClient(t, s, &dibs.Options{TTL: ttl})
					_, end := s.hold(t, "k")
					waiter := await(t, c, nil)
					time.Sleep(joined)
					end()
					lease := waiter.got(t)
					got := time.Now()
					time.Sleep(cut)
					if err := lease.Err(); err != nil {
						t.Errorf("TTL %v, told after %v: lost before the line was cut: %v", ttl, joined, err)
					}
					s.set(func(string) error { return errCut }, nil)
					for lease.Err() == nil && time.Since(got) < time.Minute {
						left := time.Duration(0)
						for e := range s.List(t.Context(), dibs.Query{ID: lease.ID()}) {
							left = e.Attempts[0].Left
						}
						if trusted := time.Until(lease.Until()); trusted >= left {
							t.Fatalf("TTL %v, told after %v, cut after %v: trusted for %v more, and the store has it for %v",
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

// TestToldLeaseIsRenewedInTime: a told lease lasts a second, and its TTL is long.
// A renewal that fails for a passing reason, or hangs, is tried again within it.
func TestToldLeaseIsRenewedInTime(t *testing.T) {
	for name, fault := range map[string]func(*teller){
		"no fault": func(*teller) {},
		"a fault of half a second": func(s *teller) {
			over := time.Now().Add(500 * time.Millisecond)
			s.set(func(verb string) error {
				if verb == "renew" && time.Now().Before(over) {
					return errCut
				}
				return nil
			}, nil)
		},
		"a renewal that hangs": func(s *teller) {
			s.telling.Lock()
			defer s.telling.Unlock()
			s.hang = true
		},
	} {
		for _, ttl := range []time.Duration{dibs.DefaultTTL, time.Hour} {
			t.Run(name+", "+ttl.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newTeller(t)
					c := newClient(t, s, &dibs.Options{TTL: ttl})
					_, end := s.hold(t, "k")
					waiter := await(t, c, nil)
					fault(s)
					end()
					lease := waiter.got(t)
					time.Sleep(10 * dibs.PushedTTL)
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

// TestToldLeaseTakesItsOptions: Detach and Margin hold as for any other lease. A
// margin that leaves nothing of PushedTTL makes the waiter ask.
func TestToldLeaseTakesItsOptions(t *testing.T) {
	for name, test := range map[string]struct {
		options *dibs.AcquireOptions
		asks    int
		trusted time.Duration
		detach  bool
	}{
		"none":               {nil, 0, 979 * time.Millisecond, false},
		"detached":           {&dibs.AcquireOptions{Detach: true}, 0, 979 * time.Millisecond, true},
		"small margin":       {&dibs.AcquireOptions{Margin: 600 * time.Millisecond}, 0, 400 * time.Millisecond, false},
		"large margin":       {&dibs.AcquireOptions{Margin: 900 * time.Millisecond}, 1, dibs.DefaultTTL - 900*time.Millisecond, false},
		"larger than a turn": {&dibs.AcquireOptions{Margin: 3 * time.Second}, 1, dibs.DefaultTTL - 3*time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTeller(t)
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
				if err := lease.Release(); err != nil {
					t.Error(err)
				}
				empty(t, s)
			})
		})
	}
}

// TestToldAsTheWaitEnds: a grant that is told at the moment in which its waiter
// gives up is taken or given back, and nothing in between.
func TestToldAsTheWaitEnds(t *testing.T) {
	const wait = 600 * time.Millisecond
	for name, test := range map[string]struct {
		told   time.Duration // after it began to wait
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
					s := newTeller(t)
					c := newClient(t, s, nil)
					_, end := s.hold(t, "k")
					waiter := await(t, c, &dibs.AcquireOptions{Wait: wait})
					s.set(nil, func(verb string) error {
						if verb == "claim" {
							time.Sleep(test.answer)
						}
						return nil
					})
					time.Sleep(test.told)
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
					if err := waiter.lease.Release(); err != nil {
						t.Error(err)
					}
					empty(t, s)
				})
			}
			t.Logf("%d taken, %d refused", taken, refused)
		})
	}
}

// TestToldAsTheClientCloses: what is told to a client that is closed meanwhile is
// given back.
func TestToldAsTheClientCloses(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			s := newTeller(t)
			c, err := dibs.New(s, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, end := s.hold(t, "k")
			waiter := await(t, c, nil)
			var all sync.WaitGroup
			all.Go(end)
			all.Go(func() {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
			<-waiter.done
			if waiter.err == nil {
				release(t, waiter.lease)
			} else if !errors.Is(waiter.err, dibs.ErrClosed) {
				t.Error(waiter.err)
			}
			all.Wait()
			time.Sleep(2 * dibs.PushedTTL) // what was told after Close runs out
			empty(t, abandonable{s})
		})
	}
}

// abandonable is a store of which what was abandoned does not count.
type abandonable struct{ *teller }

func (s abandonable) List(ctx context.Context, q dibs.Query) iter.Seq2[dibs.Entry, error] {
	return func(yield func(dibs.Entry, error) bool) {
		for e, err := range s.teller.List(ctx, q) {
			if e.Condition != dibs.ConditionAbandoned && !yield(e, err) {
				return
			}
		}
	}
}
