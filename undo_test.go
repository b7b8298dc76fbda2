package dibs_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
)

func TestClaimWhoseAnswerWasLostIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c := newClient(t, s, nil)
		lost := false
		s.set(nil, func(verb string) error {
			if verb == "claim" && !lost {
				lost = true
				return errCut
			}
			return nil
		})
		lease, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		if lease.Attempt() != 1 {
			t.Errorf("attempt %d", lease.Attempt())
		}
		if err := lease.Release(); err != nil {
			t.Error(err)
		}
		empty(t, s)
	})
}

func TestClaimWhoseOutcomeIsUnknownIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c := newClient(t, s, nil)
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

// fillingUp is a store that grants a first claim, whose answer is lost, and has no
// room for those after it.
type fillingUp struct {
	*faulty
	asked int
}

func (r *fillingUp) Claim(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	if r.asked++; r.asked == 1 {
		if err := r.faulty.Claim(ctx, claims, answers); err != nil {
			return err
		}
		return errCut
	}
	for i := range answers {
		answers[i].Err = dibs.ErrFull
	}
	return nil
}

func TestClaimIsUndoneThatIsRefusedWhenSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c := newClient(t, &fillingUp{faulty: s}, nil)
		if _, err := c.Acquire(t.Context(), "k", nil); !errors.Is(err, dibs.ErrFull) {
			t.Errorf("got %v, want ErrFull", err)
		}
		time.Sleep(time.Second)
		empty(t, s)
	})
}

func TestClaimIsUndoneWhenItsCallerGoesAway(t *testing.T) {
	for _, when := range []string{"before it is sent", "while it is under way", "when it was done"} {
		t.Run(when, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFaulty(newStore(t))
				c := newClient(t, s, nil)
				gate := make(chan struct{})
				hold := func(string) error { <-gate; return nil }
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				switch when {
				case "before it is sent":
					s.set(hold, nil)
					wg.Go(func() { // the one under way
						if err := c.TryDo(t.Context(), "other", func(context.Context) error { return nil }); err != nil {
							t.Error(err)
						}
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
								t.Error("a claim was sent whose caller had gone away")
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
	for name, o := range map[string]*dibs.AcquireOptions{"plain": {NoWait: true}, "at most once": {NoWait: true, AtMostOnce: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFaulty(newStore(t))
				c := newClient(t, s, nil)
				first, err := c.Acquire(t.Context(), "k", nil)
				if err != nil {
					t.Fatal(err)
				}
				if err := first.Save(t.Context(), []byte("half")); err != nil {
					t.Fatal(err)
				}
				if err := first.Abandon(t.Context()); err != nil {
					t.Fatal(err)
				}
				for range 3 {
					ctx, cancel := context.WithCancel(t.Context())
					gate := make(chan struct{})
					s.set(nil, func(string) error { <-gate; return nil })
					var wg sync.WaitGroup
					wg.Go(func() {
						if _, err := c.Acquire(ctx, "k", o); !errors.Is(err, context.Canceled) {
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
				next, err := c.Acquire(t.Context(), "k", o)
				if err != nil {
					t.Fatal(err)
				}
				if next.Attempt() != 2 || string(next.Progress()) != "half" {
					t.Errorf("attempt %d with progress %q", next.Attempt(), next.Progress())
				}
				if err := next.Release(); err != nil {
					t.Error(err)
				}
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
				time.Sleep(3 * time.Second) // somebody else's call keeps the line busy
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

func TestReleaseThatFailsIsMadeUpFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c := newClient(t, s, nil)
		err := c.Do(t.Context(), "k", func(context.Context) error {
			s.set(func(string) error { return errCut }, nil)
			return nil
		})
		if err != nil {
			t.Errorf("the section succeeded and Do returned %v", err)
		}
		s.set(nil, nil)
		time.Sleep(2 * time.Second)
		empty(t, s)
	})
}

func TestUndoEndsWithTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c, err := dibs.New(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		s.set(func(string) error { return errCut }, nil)
		if _, err := c.Acquire(t.Context(), "k", nil); !errors.Is(err, dibs.ErrStore) {
			t.Errorf("got %v", err)
		}
		if err := c.Close(); err == nil {
			t.Error("Close said nothing of what it could not undo")
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
		if err != nil {
			t.Fatal(err)
		}
		lease, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
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

func TestWaiterOutlivesAStoreThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c := newClient(t, s, nil)
		lease, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := c.Do(t.Context(), "k", func(context.Context) error { return nil }); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		s.set(func(string) error { return errCut }, nil)
		time.Sleep(7 * time.Second)
		s.set(nil, nil)
		time.Sleep(3 * time.Second)
		if err := lease.Release(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		empty(t, s)
	})
}

func TestWaiterGivesUpOnAStoreThatStaysAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c := newClient(t, s, nil)
		lease, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := c.Do(t.Context(), "k", nil); !errors.Is(err, dibs.ErrStore) {
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

func TestLeaseIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		c := newClient(t, s, nil)
		p, _, err := c.Reserve(t.Context(), "k", time.Hour, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			lease, err := c.Redeem(t.Context(), p, &dibs.AcquireOptions{NoWait: true})
			if err != nil || lease.Attempt() != 1 {
				t.Fatalf("%v, %v; want an attempt that comes after none", lease, err)
			}
			if err := lease.Undo(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := lease.Release(); err != nil {
				t.Errorf("Release after Undo: %v", err)
			}
		}
		if err := c.CancelPlace(t.Context(), p); err != nil {
			t.Error(err)
		}
		empty(t, s)
	})
}

// swallowing is a store whose first settlement never arrives.
type swallowing struct {
	*faulty
	asked atomic.Int32
}

func (s *swallowing) Settle(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
	if s.asked.Add(1) == 1 {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.faulty.Settle(ctx, settlements, errs)
}

// TestUndoDoesNotWaitForAnother: what a network has swallowed does not keep what is
// undone after it in anybody's way.
func TestUndoDoesNotWaitForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &swallowing{faulty: newFaulty(newStore(t))}
		holder, c := newClient(t, s.faulty, nil), newClient(t, s, nil)
		for _, key := range []string{"first", "second"} {
			lease, err := holder.Acquire(t.Context(), key, nil)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			if _, err := c.Acquire(ctx, key, nil); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			cancel()
			time.Sleep(100 * time.Millisecond)
			if key == "second" {
				for e, err := range s.List(t.Context(), dibs.Query{}) {
					if err != nil {
						t.Fatal(err)
					}
					if e.Key.Name == key && e.Waiters > 0 {
						t.Error("the place that was given up is still there")
					}
				}
			}
			if err := lease.Release(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
