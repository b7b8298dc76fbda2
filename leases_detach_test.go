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
	"github.com/dibs-go/dibs/stores/memstore"
)

// TestDetachedKeysEndTogether: with Detach, the loss of any of the keys ends the context of
// all of them, and the leases outlive the context that they were taken with.
func TestDetachedKeysEndTogether(t *testing.T) {
	type valueKey struct{}
	for _, key := range []string{"a", "b", "c"} {
		t.Run("losing "+key, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t)
				c, other := newClient(t, s, nil), newClient(t, s, nil)
				ctx, cancel := context.WithCancel(context.WithValue(t.Context(), valueKey{}, "kept"))
				all, err := c.AcquireAll(ctx, []string{"c", "a", "b"}, &dibs.AcquireOptions{Detach: true})
				testkit.Must(t, err)
				cancel()
				synctest.Wait()
				if err := context.Cause(all.Context()); err != nil {
					t.Errorf("the leases ended with the context of the call: %v", err)
				}
				if got := all.Context().Value(valueKey{}); got != "kept" {
					t.Errorf("the value of the context of the call is %v", got)
				}
				if _, err := s.ForceRelease(t.Context(), dibs.Key{Name: key}, ""); err != nil {
					t.Fatal(err)
				}
				next := acquire(t, other, key, nil)
				time.Sleep(dibs.DefaultTTL) // a renewal has noticed by then
				if cause := context.Cause(all.Context()); !errors.Is(cause, dibs.ErrLost) {
					t.Errorf("another caller holds the key; the cause is %v", cause)
				}
				if err := all.Release(); !errors.Is(err, dibs.ErrLost) {
					t.Errorf("Release returned %v", err)
				}
				release(t, next)
				testkit.Check(t, other.DoAll(t.Context(), []string{"a", "b", "c"}, func(context.Context) error { return nil }))
				empty(t, s)
			})
		})
	}
}

// TestDetachedKeysEndWithTheFirstLimit: with Detach and MaxLifetime, the limit of the key that
// was taken first ends the context, although a later key has time left.
func TestDetachedKeysEndWithTheFirstLimit(t *testing.T) {
	inMemory(t, func(t *testing.T, _ *memstore.Store, c *dibs.Client) {
		blocker := acquire(t, c, "b", nil)
		go func() {
			time.Sleep(5 * time.Second)
			release(t, blocker)
		}()
		start := time.Now()
		all, err := c.AcquireAll(t.Context(), []string{"a", "b"}, &dibs.AcquireOptions{Detach: true, MaxLifetime: 20 * time.Second})
		testkit.Must(t, err)
		<-all.Context().Done()
		if d := time.Since(start); d != 20*time.Second || !errors.Is(context.Cause(all.Context()), dibs.ErrLost) {
			t.Errorf("it ended after %v with %v; want the limit of the first key, 20s", d, context.Cause(all.Context()))
		}
		if err := all.Release(); !errors.Is(err, dibs.ErrLost) {
			t.Errorf("Release returned %v", err)
		}
	})
}

// TestDetachedKeysWaitWithTheirContext: with Detach, the context of the call still bounds
// the wait for the second key, and so does the loss of the first key. Nothing is held
// afterwards.
func TestDetachedKeysWaitWithTheirContext(t *testing.T) {
	goneAway := errors.New("the caller went away")
	for name, want := range map[string]error{"its end": goneAway, "a loss": dibs.ErrLost} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
				blocker := acquire(t, c, "b", nil)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				var wg sync.WaitGroup
				wg.Go(func() {
					if _, err := c.AcquireAll(ctx, []string{"a", "b"}, &dibs.AcquireOptions{Detach: true}); !errors.Is(err, want) {
						t.Errorf("got %v, want %v", err, want)
					}
				})
				synctest.Wait()
				if want == goneAway {
					cancel(goneAway)
				} else if _, err := s.ForceRelease(t.Context(), dibs.Key{Name: "a"}, ""); err != nil {
					t.Fatal(err)
				}
				time.Sleep(dibs.DefaultTTL)
				if held, err := c.Held(t.Context(), "a"); held || err != nil {
					t.Errorf("the first key is held: %v, %v", held, err)
				}
				release(t, blocker)
				wg.Wait()
				empty(t, s)
			})
		})
	}
}

// TestDetachedKeysNeedALiveContext: a context that ends between two keys ends the call, even if the
// next key is free.
func TestDetachedKeysNeedALiveContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		stopped := errors.New("the request is over")
		ctx, cancel := context.WithCancelCause(t.Context())
		acquired := 0
		c := newClient(t, s, &dibs.Options{Observe: func(_ context.Context, e dibs.Event) {
			if e.Kind == dibs.EventAcquired {
				acquired++
				cancel(stopped)
			}
		}})
		all, err := c.AcquireAll(ctx, []string{"a", "b"}, &dibs.AcquireOptions{Detach: true})
		if !errors.Is(err, stopped) {
			t.Errorf("got %v, %v; want %v", all, err, stopped)
		}
		if acquired != 1 {
			t.Errorf("%d keys were acquired", acquired)
		}
		empty(t, s)
	})
}
