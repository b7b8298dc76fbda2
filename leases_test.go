package dibs_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

func TestSeveralKeysWithoutDeadlock(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		names := []string{"a", "b", "c", "d"}
		var mu sync.Mutex
		inside := map[string]int{}
		var wg sync.WaitGroup
		for range 60 {
			keys := []string{names[rand.N(4)], names[rand.N(4)], names[rand.N(4)]} // in any order, some twice
			wg.Go(func() {
				err := c.DoAll(t.Context(), keys, func(context.Context) error {
					mu.Lock()
					mine := map[string]bool{}
					for _, k := range keys {
						if !mine[k] {
							mine[k] = true
							if inside[k]++; inside[k] != 1 {
								t.Errorf("%d inside %s", inside[k], k)
							}
						}
					}
					mu.Unlock()
					time.Sleep(time.Second)
					mu.Lock()
					for k := range mine {
						inside[k]--
					}
					mu.Unlock()
					return nil
				})
				testkit.Check(t, err)
			})
		}
		wg.Wait()
		empty(t, s)
	})
}

func TestSeveralKeysAllOrNone(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		b := acquire(t, c, "b", nil)
		start := time.Now()
		_, err := c.AcquireAll(t.Context(), []string{"c", "b", "a"}, &dibs.AcquireOptions{Wait: time.Minute})
		if !errors.Is(err, dibs.ErrHeld) || time.Since(start) != time.Minute {
			t.Errorf("got %v after %v", err, time.Since(start))
		}
		for _, key := range []string{"a", "c"} {
			if held, err := c.Held(t.Context(), key); held || err != nil {
				t.Errorf("%s is held: %v, %v", key, held, err)
			}
		}
		testkit.Check(t, b.Release())
		all, err := c.AcquireAll(t.Context(), []string{"c", "b", "a"}, nil)
		testkit.Must(t, err)
		if err := context.Cause(all.Context()); err != nil || all.Lease("b") == nil || all.Lease("z") != nil {
			t.Errorf("%v, %v", err, all.Lease("z"))
		}
		if _, err := s.ForceRelease(t.Context(), dibs.Key{Name: "a"}, ""); err != nil {
			t.Fatal(err)
		}
		<-all.Context().Done()
		if cause := context.Cause(all.Context()); !errors.Is(cause, dibs.ErrLost) {
			t.Errorf("one was lost and the context ended with %v", cause)
		}
		if err := all.Release(); !errors.Is(err, dibs.ErrLost) {
			t.Errorf("Release returned %v", err)
		}
		if _, err := c.AcquireAll(t.Context(), nil, nil); err == nil {
			t.Error("no key at all was accepted")
		}
		synctest.Wait()
		for key, attempt := range map[string]int{"a": 1, "b": 2, "c": 2} {
			// The work was cut off under the keys that were not lost, too.
			lease, err := c.TryAcquire(t.Context(), key, nil)
			if err != nil {
				t.Fatalf("%s: %v", key, err)
			}
			if lease.Attempt() != attempt {
				t.Errorf("%s: attempt %d, want %d", key, lease.Attempt(), attempt)
			}
			testkit.Check(t, lease.Release())
		}
		empty(t, s)
	})
}

func TestWaitForItselfIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		c, other := newClient(t, s, nil), newClient(t, s, &dibs.Options{Namespace: "other"})
		err := c.Do(t.Context(), "k", func(ctx context.Context) error {
			return other.Do(ctx, "k", func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, time.Hour)
				defer cancel()
				return c.Do(ctx, "k", func(context.Context) error { t.Error("ran inside itself"); return nil })
			})
		})
		if !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("got %v", err)
		}
		empty(t, s)
	})
}

// TestSeveralKeysShareTheirWait: Wait is for all keys together, however many of them are
// held.
func TestSeveralKeysShareTheirWait(t *testing.T) {
	for name, options := range map[string][2]time.Duration{"of the call": {time.Minute, 0}, "of the client": {0, time.Minute}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t)
				c, other := newClient(t, s, &dibs.Options{Wait: options[1]}), newClient(t, s, nil)
				first := acquire(t, other, "a", nil)
				second := acquire(t, other, "b", nil)
				go func() {
					time.Sleep(40 * time.Second)
					release(t, first)
				}()
				start := time.Now()
				_, err := c.AcquireAll(t.Context(), []string{"a", "b"}, &dibs.AcquireOptions{Wait: options[0]})
				if d := time.Since(start); !errors.Is(err, dibs.ErrHeld) || d != time.Minute {
					t.Errorf("got %v after %v; want a minute for both", err, d)
				}
				release(t, second)
				empty(t, s)
			})
		})
	}
}

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
