package dibs_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/memstore"
)

// newStore returns an empty store that is closed with the test.
func newStore(t *testing.T) *memstore.Store {
	t.Helper()
	s, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// newClient returns a client that is closed with the test.
func newClient(t *testing.T, s dibs.Store, o *dibs.Options) *dibs.Client {
	t.Helper()
	c, err := dibs.New(s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// empty fails the test unless the store holds nothing at all, once the
// background has come to rest.
func empty(t *testing.T, s dibs.Inspector) {
	t.Helper()
	synctest.Wait()
	for e, err := range s.List(t.Context(), dibs.Query{}) {
		if err != nil {
			t.Fatal(err)
		}
		t.Errorf("left behind: %+v", e)
	}
}

func TestDoRunsAloneAndReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		c := newClient(t, s, nil)
		inside, most, runs := 0, 0, 0
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				err := c.Do(t.Context(), "k", func(ctx context.Context) error {
					inside++
					most = max(most, inside)
					time.Sleep(time.Second)
					inside--
					runs++
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if most != 1 || runs != 50 {
			t.Errorf("%d at once, %d runs; want 1 and 50", most, runs)
		}
		empty(t, s)
	})
}

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
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t)
				c := newClient(t, s, nil)
				if err := run(t.Context(), c); err != nil {
					t.Error(err)
				}
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

func TestWaitersAreServedInOrder(t *testing.T) {
	for _, notified := range []bool{true, false} {
		t.Run(fmt.Sprintf("notified=%v", notified), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s dibs.Store = newStore(t)
				if !notified {
					s = struct{ dibs.Store }{s} // the contract alone
				}
				c := newClient(t, s, nil)
				var order []int
				var wg sync.WaitGroup
				first, err := c.Acquire(t.Context(), "k", nil)
				if err != nil {
					t.Fatal(err)
				}
				for i := range 100 {
					wg.Go(func() {
						if err := c.Do(t.Context(), "k", func(context.Context) error {
							order = append(order, i)
							return nil
						}); err != nil {
							t.Error(err)
						}
					})
					synctest.Wait()
				}
				start := time.Now()
				if err := first.Release(); err != nil {
					t.Error(err)
				}
				wg.Wait()
				for i, n := range order {
					if i != n {
						t.Fatalf("served in the order %v", order)
					}
				}
				if took := time.Since(start); notified && took > 0 {
					t.Errorf("with wake-ups 100 hand-overs took %v", took)
				}
			})
		})
	}
}

// TestWaitersFarBackKeepTheirPlaces: those who ask seldom have a place that
// stands for as long, also before they have asked a second time.
func TestWaitersFarBackKeepTheirPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, newStore(t), nil)
		first, err := c.Acquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		var order []int
		var wg sync.WaitGroup
		join := func(i int) {
			wg.Go(func() {
				if err := c.Do(t.Context(), "k", func(context.Context) error {
					order = append(order, i)
					return nil
				}); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		for i := range 100 {
			join(i)
		}
		time.Sleep(1800 * time.Millisecond)
		join(100)
		time.Sleep(700 * time.Millisecond)
		if err := first.Release(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		for i, n := range order {
			if i != n {
				t.Fatalf("served in the order %v", order)
			}
		}
	})
}

func TestGivingUpLeavesNoPlace(t *testing.T) {
	cause := errors.New("enough")
	tests := map[string]struct {
		options *dibs.AcquireOptions
		ctx     func(context.Context) (context.Context, context.CancelFunc)
		want    error
	}{
		"the wait is over": {
			options: &dibs.AcquireOptions{Wait: 7 * time.Second},
			want:    dibs.ErrHeld,
		},
		"the context ends": {
			ctx: func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeoutCause(ctx, 7*time.Second, cause)
			},
			want: cause,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t)
				c := newClient(t, s, nil)
				lease, err := c.Acquire(t.Context(), "k", nil)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := t.Context(), func() {}
				if test.ctx != nil {
					ctx, cancel = test.ctx(ctx)
				}
				defer cancel()
				start := time.Now()
				if _, err := c.Acquire(ctx, "k", test.options); !errors.Is(err, test.want) {
					t.Errorf("got %v, want %v", err, test.want)
				}
				if d := time.Since(start); d != 7*time.Second {
					t.Errorf("it took %v", d)
				}
				if err := lease.Release(); err != nil {
					t.Error(err)
				}
				empty(t, s)
			})
		})
	}
}

func TestHeldAsksWithoutTaking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		c := newClient(t, s, nil)
		held := func() bool {
			h, err := c.Held(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			return h
		}
		if held() {
			t.Error("a key that nobody knows is held")
		}
		lease, err := c.Acquire(t.Context(), "k", &dibs.AcquireOptions{Permits: 2})
		if err != nil {
			t.Fatal(err)
		}
		if !held() {
			t.Error("a key that is held is not")
		}
		if err := lease.Release(); err != nil {
			t.Error(err)
		}
		if held() {
			t.Error("a key that was released is held")
		}
		empty(t, s)
	})
}

func TestNamespacesNeverMeet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		a := newClient(t, s, &dibs.Options{Namespace: "a"})
		b := newClient(t, s, &dibs.Options{Namespace: "b"})
		err := a.Do(t.Context(), "k", func(ctx context.Context) error {
			return b.TryDo(ctx, "k", func(context.Context) error { return nil })
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestPermitsAdmitSoMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		c := newClient(t, s, nil)
		var mu sync.Mutex
		inside, most := 0, 0
		var wg sync.WaitGroup
		for range 30 {
			wg.Go(func() {
				lease, err := c.Acquire(t.Context(), "k", &dibs.AcquireOptions{Permits: 3})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				inside++
				most = max(most, inside)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				inside--
				mu.Unlock()
				if err := lease.Release(); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		_, err := c.Acquire(t.Context(), "k", &dibs.AcquireOptions{NoWait: true})
		if !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("another number of permits: %v", err)
		}
		wg.Wait()
		if most != 3 {
			t.Errorf("%d at once, want 3", most)
		}
		empty(t, s)
	})
}

func TestOptionsAreValidated(t *testing.T) {
	s := newStore(t)
	clients := map[string]*dibs.Options{
		"Options.Namespace": {Namespace: "a b"},
		"Options.TTL":       {TTL: time.Millisecond},
		"Options.Wait":      {Wait: -1},
		"Options.Timeout":   {Timeout: -1},
	}
	for field, o := range clients {
		if _, err := dibs.New(s, o); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := dibs.New(nil, nil); err == nil {
		t.Error("New without a store returned no error")
	}
	c := newClient(t, s, nil)
	calls := map[string]*dibs.AcquireOptions{
		"AcquireOptions.TTL":     {TTL: 1},
		"AcquireOptions.Wait":    {Wait: -1},
		"AcquireOptions.Permits": {Permits: 2, AtMostOnce: true},
		"AcquireOptions.MaxAge":  {MaxAge: -1},
	}
	for field, o := range calls {
		if _, err := c.Acquire(t.Context(), "k", o); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, key := range []string{"", strings.Repeat("k", dibs.MaxKey+1)} {
		if _, err := c.Acquire(t.Context(), key, nil); err == nil {
			t.Errorf("a key of %d bytes was accepted", len(key))
		}
	}
}
