package dibs_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

func TestDoEndsEveryWay(t *testing.T) {
	broken := errors.New("broken")
	tests := map[string]func(ctx context.Context, c *dibs.Client) error{
		"returns an error": func(ctx context.Context, c *dibs.Client) error {
			err := c.Do(ctx, "k", func(context.Context) error { return broken })
			if !errors.Is(err, broken) {
				return fmt.Errorf("Do returned %w", err)
			}
			return nil
		},
		"panics": func(ctx context.Context, c *dibs.Client) (err error) {
			defer func() {
				if recover() != any(broken) {
					err = errors.New("the panic did not pass")
				}
			}()
			return c.Do(ctx, "k", func(context.Context) error { panic(broken) })
		},
		"calls Goexit": func(ctx context.Context, c *dibs.Client) error {
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = c.Do(ctx, "k", func(context.Context) error { runtime.Goexit(); return nil })
			}()
			<-done
			return nil
		},
		"is cancelled inside": func(ctx context.Context, c *dibs.Client) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			return c.Do(ctx, "k", func(ctx context.Context) error {
				cancel()
				if ctx.Err() == nil {
					return errors.New("the lease's context does not derive from the caller's")
				}
				return nil
			})
		},
	}
	for name, run := range tests {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
				testkit.Check(t, run(t.Context(), c))
				if err := c.TryDo(t.Context(), "k", func(context.Context) error { return nil }); err != nil {
					t.Errorf("the key is not free: %v", err)
				}
				empty(t, s)
			})
		})
	}
}

func TestTryDoReturnsErrHeldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, newStore(t), &dibs.Options{TTL: 30 * time.Second})
		start := time.Now()
		err := c.Do(t.Context(), "k", func(ctx context.Context) error {
			return c.TryDo(ctx, "k", func(context.Context) error { t.Error("ran"); return nil })
		})
		held, ok := errors.AsType[*dibs.HeldError](err)
		if !ok || !errors.Is(err, dibs.ErrHeld) || held.Key.Name != "k" || held.Left != 30*time.Second {
			t.Errorf("got %#v", err)
		}
		if strings.Contains(err.Error(), `"k"`) {
			t.Errorf("the text of the error has the key in it: %v", err)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("it took %v", d)
		}
	})
}

// TestNoFunction: a call without a function is refused before the store is asked for the key.
func TestNoFunction(t *testing.T) {
	s, err := memstore.New(nil)
	testkit.Must(t, err)
	defer s.Close()
	c := newClient(t, s, &dibs.Options{ObserveStore: func(call dibs.StoreCall) { t.Errorf("the store was asked to %s", call.Verb) }})
	ctx := t.Context()
	for call, do := range map[string]func() error{
		"Do":    func() error { return c.Do(ctx, "k", nil) },
		"TryDo": func() error { return c.TryDo(ctx, "k", nil) },
		"DoAll": func() error { return c.DoAll(ctx, []string{"k"}, nil) },
		"Lead":  func() error { return c.Lead(ctx, "k", nil, nil) },
		"Once": func() error {
			_, err := dibs.Once[int](ctx, c, "k", nil, nil)
			return err
		},
		"OnceIn": func() error {
			_, err := dibs.OnceIn[int](ctx, c, noTransactor{}, "k", nil, nil)
			return err
		},
		"Step": func() error {
			_, err := dibs.Step[int](ctx, "s", nil)
			return err
		},
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), call+" was given no function") {
			t.Errorf("%s without a function: %v", call, err)
		}
	}
}

// noTransactor has no transactions.
type noTransactor struct{}

func (noTransactor) Begin(context.Context) (dibs.Transaction, error) {
	return nil, errors.New("a transaction was begun")
}

func BenchmarkDoUncontended(b *testing.B) {
	s, err := memstore.New(nil)
	testkit.Must(b, err)
	defer s.Close()
	c, err := dibs.New(s, nil)
	testkit.Must(b, err)
	defer c.Close()
	nothing := func(context.Context) error { return nil }
	b.ReportAllocs()
	for b.Loop() {
		testkit.Must(b, c.Do(b.Context(), "key", nothing))
	}
}
