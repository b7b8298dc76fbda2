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
