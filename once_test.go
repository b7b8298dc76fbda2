package dibs_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

type receipt struct {
	ID    string
	Cents int
}

func TestOnceRunsOnceAndAnswersAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		a, b := newClient(t, s, nil), newClient(t, s, nil)
		var runs atomic.Int32
		charge := func(context.Context) (receipt, error) {
			time.Sleep(time.Minute)
			return receipt{ID: "r1", Cents: 100 * int(runs.Add(1))}, nil
		}
		var wg sync.WaitGroup
		for i := range 40 {
			c := a
			if i%2 == 1 {
				c = b
			}
			wg.Go(func() {
				got, err := dibs.Once(t.Context(), c, "k", nil, charge)
				if err != nil || got != (receipt{"r1", 100}) {
					t.Errorf("got %+v, %v", got, err)
				}
			})
		}
		wg.Wait()
		time.Sleep(23 * time.Hour)
		if got, err := dibs.Once(t.Context(), b, "k", nil, charge); err != nil || got.Cents != 100 {
			t.Errorf("a day later: %+v, %v", got, err)
		}
		time.Sleep(time.Hour)
		if got, err := dibs.Once(t.Context(), b, "k", nil, charge); err != nil || got.Cents != 200 {
			t.Errorf("after the retention: %+v, %v", got, err)
		}
	})
}

func TestTryOnceDoesNotWait(t *testing.T) {
	inMemory(t, func(t *testing.T, _ *memstore.Store, c *dibs.Client) {
		one := func(context.Context) (int, error) { return 1, nil }
		got, err := dibs.TryOnce(t.Context(), c, "k", nil, func(ctx context.Context) (int, error) {
			start := time.Now()
			if _, err := dibs.TryOnce(t.Context(), c, "k", nil, one); !errors.Is(err, dibs.ErrHeld) || !time.Now().Equal(start) {
				t.Errorf("while it runs: %v after %v", err, time.Since(start))
			}
			return 2, nil
		})
		if err != nil || got != 2 {
			t.Errorf("the first call: %d, %v", got, err)
		}
		if got, err := dibs.TryOnce(t.Context(), c, "k", nil, one); err != nil || got != 2 {
			t.Errorf("the next call: %d, %v", got, err)
		}
	})
}

func TestOnceAndErrors(t *testing.T) {
	declined := errors.New("card declined")
	for _, remember := range []bool{false, true} {
		inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
			runs := 0
			o := &dibs.OnceOptions{Remember: func(err error) bool { return remember && errors.Is(err, declined) }}
			fn := func(context.Context) (int, error) { runs++; return 7, declined }
			if _, err := dibs.Once(t.Context(), c, "k", o, fn); err != declined {
				t.Errorf("the first caller got %v", err)
			}
			_, err := dibs.Once(t.Context(), c, "k", o, fn)
			remembered, ok := errors.AsType[*dibs.RememberedError](err)
			switch {
			case remember && (!ok || remembered.Text != "card declined" || runs != 1):
				t.Errorf("remembered: %v after %d runs", err, runs)
			case !remember && (err != declined || runs != 2):
				t.Errorf("not remembered: %v after %d runs", err, runs)
			}
		})
	}
}

func TestOnceNoticesAnotherQuestion(t *testing.T) {
	inMemory(t, func(t *testing.T, _ *memstore.Store, c *dibs.Client) {
		fn := func(context.Context) (int, error) { return 1, nil }
		if _, err := dibs.Once(t.Context(), c, "k", &dibs.OnceOptions{Fingerprint: dibs.Fingerprint{1}}, fn); err != nil {
			t.Fatal(err)
		}
		if _, err := dibs.Once(t.Context(), c, "k", &dibs.OnceOptions{Fingerprint: dibs.Fingerprint{2}}, fn); !errors.Is(err, dibs.ErrMismatch) {
			t.Errorf("got %v", err)
		}
		// A result that is read as something else is an error, not a zero.
		if got, err := dibs.Once(t.Context(), c, "k", nil, func(context.Context) (receipt, error) { return receipt{}, nil }); err == nil {
			t.Errorf("a number was read as %+v", got)
		}
	})
}

func TestOnceLeavesNothingOnEveryWayOut(t *testing.T) {
	ways := map[string]func(){
		"panic":  func() { panic("broken") },
		"goexit": func() { runtime.Goexit() },
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer func() { _ = recover() }()
					_, _ = dibs.Once(t.Context(), c, "k", nil, func(context.Context) (int, error) { way(); return 1, nil })
				}()
				<-done
				empty(t, s)
			})
		})
	}
}

func TestOnceOutlivesAShortOutage(t *testing.T) {
	withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
		runs := 0
		fn := func(context.Context) (int, error) {
			runs++
			s.set(func(verb string) error { return errCut }, nil)
			time.AfterFunc(3*time.Second, func() { s.set(nil, nil) })
			return runs, nil
		}
		for range 2 {
			if got, err := dibs.Once(t.Context(), c, "k", nil, fn); err != nil || got != 1 {
				t.Errorf("got %v, %v", got, err)
			}
		}
	})
}

func TestOnceSaysThatItCouldNotKeep(t *testing.T) {
	withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
		got, err := dibs.Once(t.Context(), c, "k", nil, func(context.Context) (int, error) {
			s.set(func(verb string) error { return errCut }, nil)
			return 42, nil
		})
		if _, ok := errors.AsType[*dibs.KeepError](err); !ok || !errors.Is(err, errCut) || got != 42 {
			t.Errorf("got %v, %v", got, err)
		}
		if err != nil && strings.Count(err.Error(), "dibs:") != 1 {
			t.Errorf("the error says %q", err)
		}
		s.set(nil, nil)
		time.Sleep(time.Minute)
		empty(t, s)
	})
}

// TestOnceWhoseRecordMayBeKept: the record was written, and no answer said so. That is not a loss of
// the lease, and the next caller gets the result.
func TestOnceWhoseRecordMayBeKept(t *testing.T) {
	withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
		got, err := dibs.Once(t.Context(), c, "k", nil, func(context.Context) (int, error) {
			s.set(nil, func(verb string) error {
				s.mu.Lock()
				defer s.mu.Unlock()
				if n := len(s.settls); verb == "settle" && s.settls[n-1][0].Outcome == store.Keep {
					return errCut
				}
				return nil
			})
			return 42, nil
		})
		if _, ok := errors.AsType[*dibs.KeepError](err); !ok || errors.Is(err, dibs.ErrLost) || got != 42 {
			t.Errorf("got %v, %v", got, err)
		}
		s.set(nil, nil)
		again, err := dibs.Once(t.Context(), c, "k", nil, func(context.Context) (int, error) { return 43, nil })
		if err != nil || again != 42 {
			t.Errorf("the next caller got %v, %v", again, err)
		}
	})
}

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
