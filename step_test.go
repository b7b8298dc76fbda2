package dibs_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

func TestStepsOfARunThatCrashedAreSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		ran := map[string]int{}
		var numbers []int
		// Three holders crash, each one step further; the fourth finishes.
		for crash := 1; crash <= 4; crash++ {
			c := newClient(t, s, nil)
			_, err := dibs.Once(t.Context(), c, "order 7", nil, func(ctx context.Context) (int, error) {
				numbers = nil
				for i, name := range []string{"reserve", "charge", "ship"} {
					n, err := dibs.Step(ctx, name, func(context.Context) (int, error) {
						ran[name]++
						return 10 * (i + 1), nil
					})
					if err != nil {
						return 0, err
					}
					numbers = append(numbers, n)
					if crash == i+1 {
						l, _ := dibs.FromContext(ctx)
						return 0, l.Abandon(t.Context()) // as a crash would
					}
				}
				return len(numbers), nil
			})
			if err != nil {
				t.Errorf("run %d: %v", crash, err)
			}
		}
		for _, name := range []string{"reserve", "charge", "ship"} {
			if ran[name] != 1 {
				t.Errorf("%s ran %d times", name, ran[name])
			}
		}
		if len(numbers) != 3 || numbers[0] != 10 || numbers[2] != 30 {
			t.Errorf("the last run got %v", numbers)
		}
	})
}

func TestStepErrors(t *testing.T) {
	broken := errors.New("broken")
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		if _, err := dibs.Step(t.Context(), "a", func(context.Context) (int, error) { return 1, nil }); !errors.Is(err, dibs.ErrNoLease) {
			t.Errorf("without a lease: %v", err)
		}
		err := c.Do(t.Context(), "k", func(ctx context.Context) error {
			runs := 0
			step := func() (int, error) {
				return dibs.Step(ctx, "a", func(context.Context) (int, error) {
					runs++
					if runs == 1 {
						return 0, broken
					}
					return runs, nil
				})
			}
			if _, err := step(); !errors.Is(err, broken) {
				t.Errorf("got %v", err)
			}
			for range 2 {
				if n, err := step(); n != 2 || err != nil {
					t.Errorf("got %v, %v", n, err)
				}
			}
			if _, err := s.ForceRelease(ctx, dibs.Key{Name: "k"}, ""); err != nil {
				t.Error(err)
			}
			_, err := dibs.Step(ctx, "b", func(context.Context) (int, error) { return 1, nil })
			if !errors.Is(err, dibs.ErrLost) {
				t.Errorf("a holder that was evicted kept a step: %v", err)
			}
			if _, err := dibs.Step(ctx, "c", func(context.Context) (int, error) { t.Error("ran"); return 0, nil }); !errors.Is(err, dibs.ErrLost) {
				t.Errorf("the step after it got %v", err)
			}
			return nil
		})
		if !errors.Is(err, dibs.ErrLost) {
			t.Error(err)
		}
	})
}

// TestStepIsKeptAlthoughItsCallerIsCancelled: a step that was done is kept, although its caller stops waiting.
func TestStepIsKeptAlthoughItsCallerIsCancelled(t *testing.T) {
	withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
		first := acquire(t, c, "k", nil)
		ctx, cancel := context.WithCancel(first.Context())
		got, err := dibs.Step(ctx, "charge", func(context.Context) (int, error) { cancel(); return 1, nil })
		if got != 1 || err != nil {
			t.Errorf("got %d, %v", got, err)
		}
		testkit.Must(t, first.Abandon(t.Context()))
		next := acquire(t, c, "k", nil)
		defer release(t, next)
		got, err = dibs.Step(next.Context(), "charge", func(context.Context) (int, error) { t.Error("it ran again"); return 2, nil })
		if got != 1 || err != nil {
			t.Errorf("the next holder got %d, %v", got, err)
		}
	})
}

// TestStepThatWasNotKeptRunsAgain: a step whose result the store did not take is not done for the
// same holder, as it is not for the next one.
func TestStepThatWasNotKeptRunsAgain(t *testing.T) {
	withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
		lease := acquire(t, c, "k", nil)
		runs := 0
		step := func(ctx context.Context) (int, error) {
			return dibs.Step(ctx, "charge", func(context.Context) (int, error) { runs++; return runs, nil })
		}
		s.set(failing("renew", errCut), nil)
		if got, err := step(lease.Context()); got != 1 || !errors.Is(err, dibs.ErrStore) {
			t.Errorf("without the store: %d, %v", got, err)
		}
		s.set(nil, nil)
		for range 2 {
			if got, err := step(lease.Context()); got != 2 || err != nil {
				t.Errorf("with the store: %d, %v; want 2", got, err)
			}
		}
		testkit.Must(t, lease.Abandon(t.Context()))
		next := acquire(t, c, "k", nil)
		defer release(t, next)
		if got, err := step(next.Context()); got != 2 || err != nil {
			t.Errorf("the next holder got %d, %v; want 2", got, err)
		}
	})
}
