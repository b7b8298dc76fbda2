package dibs_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

func TestClaimWhoseOutcomeIsUnknownIsUndone(t *testing.T) {
	withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
		s.set(nil, func(string) error { return errCut }) // everything happens, no answer arrives
		start := time.Now()
		_, err := c.Acquire(t.Context(), "k", nil)
		if !errors.Is(err, dibs.ErrStore) || !errors.Is(err, errCut) || errors.Is(err, dibs.ErrHeld) {
			t.Errorf("got %v", err)
		}
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("it took %v", d)
		}
		s.set(nil, nil)
		time.Sleep(2 * time.Second)
		empty(t, s)
	})
}

func TestClaimIsUndoneWhenItsCallerGoesAway(t *testing.T) {
	for _, when := range []string{"before it is sent", "while it is under way", "when it was done"} {
		t.Run(when, func(t *testing.T) {
			withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
				gate := make(chan struct{})
				hold := func(string) error { <-gate; return nil }
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				switch when {
				case "before it is sent":
					s.set(hold, nil)
					wg.Go(func() { // the one under way
						testkit.Check(t, c.TryDo(t.Context(), "other", func(context.Context) error { return nil }))
					})
					synctest.Wait()
				case "while it is under way":
					s.set(hold, nil)
				case "when it was done":
					s.set(nil, hold)
				}
				wg.Go(func() {
					if _, err := c.Acquire(ctx, "k", nil); !errors.Is(err, context.Canceled) {
						t.Errorf("got %v", err)
					}
				})
				synctest.Wait()
				cancel()
				synctest.Wait()
				s.set(nil, nil)
				close(gate)
				wg.Wait()
				empty(t, s)
				if when == "before it is sent" {
					for _, batch := range s.claims {
						for _, claim := range batch {
							if claim.Key.Name == "k" {
								t.Error("a claim was sent after its caller gave up")
							}
						}
					}
				}
			})
		})
	}
}

// TestUndoneClaimTellsNothing: a claim whose caller goes away while it is under
// way takes nothing of what the holders before it left for the next one.
func TestUndoneClaimTellsNothing(t *testing.T) {
	for name, o := range map[string]*dibs.AcquireOptions{"plain": nil, "at most once": {AtMostOnce: true}} {
		t.Run(name, func(t *testing.T) {
			withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
				first := acquire(t, c, "k", nil)
				testkit.Must(t, first.Save(t.Context(), []byte("half")))
				testkit.Must(t, first.Abandon(t.Context()))
				for range 3 {
					ctx, cancel := context.WithCancel(t.Context())
					gate := make(chan struct{})
					s.set(nil, func(string) error { <-gate; return nil })
					var wg sync.WaitGroup
					wg.Go(func() {
						if _, err := c.TryAcquire(ctx, "k", o); !errors.Is(err, context.Canceled) {
							t.Errorf("got %v", err)
						}
					})
					synctest.Wait()
					cancel()
					wg.Wait()
					s.set(nil, nil)
					close(gate)
					synctest.Wait()
				}
				next := acquire(t, c, "k", o)
				if next.Attempt() != 2 || string(next.Progress()) != "half" {
					t.Errorf("attempt %d with progress %q", next.Attempt(), next.Progress())
				}
				testkit.Check(t, next.Release())
				empty(t, s)
			})
		})
	}
}

// TestClaimSentAgainIsUndone: a claim whose first answer was lost is undone
// though its caller goes away before it could be sent again.
func TestClaimSentAgainIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		f := newFaulty(s)
		c := newClient(t, f, nil)
		calls := 0
		f.set(nil, func(verb string) error {
			if verb != "claim" {
				return nil
			}
			switch calls++; calls {
			case 1:
				return errors.New("the connection was reset")
			case 2:
				time.Sleep(3 * time.Second) // another caller's call keeps the line busy
			}
			return nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.Acquire(ctx, "k", nil); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		})
		time.Sleep(10 * time.Millisecond)
		if _, err := c.Held(t.Context(), "other"); err != nil {
			t.Error(err)
		}
		wg.Wait()
		empty(t, s)
	})
}

// swallowing is a store whose first settlement never arrives.
type swallowing struct {
	*faulty
	asked atomic.Int32
}

func (s *swallowing) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	if s.asked.Add(1) == 1 {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.faulty.Settle(ctx, settlements, errs)
}

// TestUndoDoesNotWaitForAnother: what a network has swallowed does not keep what is
// undone after it waiting.
func TestUndoDoesNotWaitForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &swallowing{faulty: newFaulty(newStore(t))}
		holder, c := newClient(t, s.faulty, nil), newClient(t, s, nil)
		for _, key := range []string{"first", "second"} {
			lease := acquire(t, holder, key, nil)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			if _, err := c.Acquire(ctx, key, nil); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			cancel()
			time.Sleep(100 * time.Millisecond)
			if key == "second" {
				for e, err := range s.List(t.Context(), store.Query{}) {
					testkit.Must(t, err)
					if e.Key.Name == key && e.Waiters > 0 {
						t.Error("the place that was given up is still there")
					}
				}
			}
			testkit.Must(t, lease.Release())
		}
	})
}

// An undo is tried for as long as the lease or the place can last, however long that is.
func TestUndoOfWhatLastsForEver(t *testing.T) {
	withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
		cut := func(string) error { return errCut }
		s.set(nil, cut) // everything happens, no answer arrives
		if _, _, err := c.Reserve(t.Context(), "place", math.MaxInt64, nil); !errors.Is(err, dibs.ErrStore) {
			t.Errorf("got %v", err)
		}
		if _, err := c.Acquire(t.Context(), "lease", &dibs.AcquireOptions{TTL: math.MaxInt64}); !errors.Is(err, dibs.ErrStore) {
			t.Errorf("got %v", err)
		}
		s.set(nil, nil)
		time.Sleep(2 * time.Second)
		empty(t, s)
	})
}

// TestUndoOutlastsAnOutage: what a claim may have got is given back after an outage, for as
// long as the lease lasts, and the place, if that is longer.
func TestUndoOutlastsAnOutage(t *testing.T) {
	for name, claim := range map[string]func(context.Context, *dibs.Client) error{
		"a lease": func(ctx context.Context, c *dibs.Client) error {
			_, err := c.Acquire(ctx, "k", &dibs.AcquireOptions{TTL: time.Hour})
			return err
		},
		"a reserved place": func(ctx context.Context, c *dibs.Client) error {
			_, _, err := c.Reserve(ctx, "k", time.Hour, nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
				s.set(func(verb string) error {
					if verb == "settle" {
						return errCut
					}
					return nil
				}, func(string) error { return errCut })
				if err := claim(t.Context(), c); !errors.Is(err, dibs.ErrStore) {
					t.Errorf("got %v", err)
				}
				time.Sleep(10 * time.Minute)
				s.set(nil, nil)
				time.Sleep(2 * time.Second)
				empty(t, s)
			})
		})
	}
}

// TestPlaceIsUndoneWhenItsCallerGoesAway: a caller that goes away while it asks leaves no
// place in the queue.
func TestPlaceIsUndoneWhenItsCallerGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		holder, c := newClient(t, s.Store, nil), newClient(t, s, nil)
		lease := acquire(t, holder, "k", nil)
		gate := make(chan struct{})
		s.set(nil, func(string) error { <-gate; return nil })
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.Acquire(ctx, "k", nil); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		})
		synctest.Wait()
		cancel()
		wg.Wait()
		s.set(nil, nil)
		close(gate)
		synctest.Wait()
		noWaiters(t, s)
		release(t, lease)
	})
}

// refusingNext is a store whose answer to the first claim is lost, and which refuses the next one.
type refusingNext struct {
	*faulty
	with  error
	asked atomic.Int32
}

func (s *refusingNext) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	switch s.asked.Add(1) {
	case 1:
		_ = s.Store.Claim(ctx, claims, answers)
		return errCut
	case 2:
		for i := range answers {
			answers[i] = store.Answer{Err: s.with}
		}
		return nil
	}
	return s.Store.Claim(ctx, claims, answers)
}

// TestUnknownClaimIsUndoneAlthoughTheLastAnswerIsKnown: what an earlier try may have got is
// undone, although the last try got a definite answer.
func TestUnknownClaimIsUndoneAlthoughTheLastAnswerIsKnown(t *testing.T) {
	for _, refusal := range []error{dibs.ErrBusy, dibs.ErrFull} {
		synctest.Test(t, func(t *testing.T) {
			s := &refusingNext{faulty: newFaulty(newStore(t)), with: refusal}
			c := newClient(t, s, nil)
			if _, err := c.TryAcquire(t.Context(), "k", nil); !errors.Is(err, refusal) {
				t.Errorf("got %v; want %v", err, refusal)
			}
			time.Sleep(time.Second)
			empty(t, s)
		})
	}
}

// TestLateGrantIsUndone: a grant whose answer came after the end of its lease is given back, and does
// not count as an attempt.
func TestLateGrantIsUndone(t *testing.T) {
	withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
		s.set(func(verb string) error {
			if verb == "claim" {
				time.Sleep(3 * time.Second) // on its way
			}
			return nil
		}, nil)
		o := &dibs.AcquireOptions{TTL: 2 * time.Second, AtMostOnce: true}
		if _, err := c.Acquire(t.Context(), "k", o); !errors.Is(err, dibs.ErrStore) {
			t.Errorf("got %v", err)
		}
		s.set(nil, nil)
		empty(t, s)
		next := acquire(t, c, "k", o)
		if next.Attempt() != 1 {
			t.Errorf("the next holder is attempt %d", next.Attempt())
		}
		release(t, next)
	})
}

// turningAway is a store that answers a waiter's second question by itself.
type turningAway struct {
	*faulty
	answer store.Answer
	asked  atomic.Int32
}

func (s *turningAway) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	if s.asked.Add(1) == 2 {
		answers[0] = s.answer
		return nil
	}
	return s.Store.Claim(ctx, claims, answers)
}

// TestWaiterThatIsRefusedHasNoPlace: a waiter that gets an error has no place in the queue any more,
// whatever the store says.
func TestWaiterThatIsRefusedHasNoPlace(t *testing.T) {
	for name, answer := range map[string]store.Answer{
		"done":         {State: store.Done},
		"mismatch":     {State: store.Mismatch},
		"unknown":      {State: store.Unknown},
		"full":         {Err: dibs.ErrFull},
		"another word": {State: 99},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &turningAway{faulty: newFaulty(newStore(t)), answer: answer}
				holder, c := newClient(t, s.Store, nil), newClient(t, s, nil)
				lease := acquire(t, holder, "k", nil)
				if _, err := c.Acquire(t.Context(), "k", nil); err == nil || errors.Is(err, dibs.ErrHeld) {
					t.Errorf("got %v", err)
				}
				synctest.Wait()
				noWaiters(t, s)
				release(t, lease)
			})
		})
	}
}

func TestClaimWhoseAnswerWasLostIsSentAgain(t *testing.T) {
	withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
		lost := false
		s.set(nil, func(verb string) error {
			if verb == "claim" && !lost {
				lost = true
				return errCut
			}
			return nil
		})
		lease := acquire(t, c, "k", nil)
		if lease.Attempt() != 1 {
			t.Errorf("attempt %d", lease.Attempt())
		}
		testkit.Check(t, lease.Release())
		empty(t, s)
	})
}
