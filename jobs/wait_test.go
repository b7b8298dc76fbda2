package jobs

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/memstore"
)

// inside returns a Mutex on a store of its own, and the client that it has.
func inside(t *testing.T, o *Options) (*Mutex, *dibs.Client) {
	t.Helper()
	return insideOf(t, o, func(s dibs.Store) dibs.Store { return s })
}

// insideOf is inside with a store made of one.
func insideOf(t *testing.T, o *Options, of func(dibs.Store) dibs.Store) (*Mutex, *dibs.Client) {
	t.Helper()
	s, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := dibs.New(of(s), nil)
	if err != nil {
		t.Fatal(err)
	}
	o.Logger = slog.New(slog.DiscardHandler)
	m, err := New(c, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Close()
		if err := errors.Join(c.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	})
	return m, c
}

// TestClosedAtTheMomentOfTheGrant closes the Mutex just before the key is granted: the job
// runs with a context that stays, or comes back.
func TestClosedAtTheMomentOfTheGrant(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			m, c := inside(t, &Options{})
			lease, err := c.Acquire(t.Context(), "k", nil)
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() {
				ended <- m.Run(t.Context(), Job{Kind: "test", ID: "1", Key: "k"}, func(ctx context.Context) error {
					time.Sleep(time.Millisecond)
					return context.Cause(ctx)
				})
			}()
			synctest.Wait()
			m.end()
			if err := lease.Release(); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; err != nil {
				if _, ok := errors.AsType[*ComeBackError](err); !ok {
					t.Fatalf("the job ran, and its context ended: %v", err)
				}
			}
		})
	}
}

// TestLimitThatIsOverByNow waits for a job whose limit was over just after it was
// looked at.
func TestLimitThatIsOverByNow(t *testing.T) {
	for _, over := range []time.Duration{0, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			m, c := inside(t, &Options{Limit: time.Minute, Otherwise: Fail})
			lease, err := c.Acquire(t.Context(), "k", nil)
			if err != nil {
				t.Fatal(err)
			}
			a, err := m.attempt(t.Context(), Job{Kind: "test", ID: "1", Key: "k", Due: time.Now().Add(-time.Minute - over)})
			if err != nil {
				t.Fatal(err)
			}
			defer a.over()
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			start := time.Now()
			if _, err := a.wait(ctx); !errors.Is(err, dibs.ErrHeld) || time.Since(start) > time.Second {
				t.Errorf("over for %v: it waited for %v and ended with %v; want ErrHeld, soon", over, time.Since(start), err)
			}
			if err := lease.Release(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
