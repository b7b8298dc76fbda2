package dibs_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

// What bounds the wait bounds this one, too. TryAcquire has its answer at once.
func TestPermitsThatDifferBoundTheWait(t *testing.T) {
	inMemory(t, func(t *testing.T, _ *memstore.Store, client *dibs.Client) {
		held := acquire(t, client, "k", &dibs.AcquireOptions{Permits: 2})
		for name, wait := range map[string]time.Duration{"none": 0, "a moment": time.Millisecond, "a minute": time.Minute} {
			start := time.Now()
			acquire := client.Acquire
			if wait == 0 {
				acquire = client.TryAcquire
			}
			_, err := acquire(t.Context(), "k", &dibs.AcquireOptions{Permits: 3, Wait: wait})
			if h, ok := errors.AsType[*dibs.HeldError](err); !ok || h.Waited != wait || time.Since(start) != wait {
				t.Errorf("%s: after %v: %v", name, time.Since(start), err)
			}
		}
		// It would wait for itself.
		if _, err := client.Acquire(held.Context(), "k", &dibs.AcquireOptions{Permits: 3}); !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("inside itself: %v", err)
		}
		release(t, held)
	})
}

// A caller that holds permits of a key is refused at once if all that it holds leaves no
// room. What it has released does not count.
func TestPermitsThatTheCallerHolds(t *testing.T) {
	inMemory(t, func(t *testing.T, _ *memstore.Store, c *dibs.Client) {
		o := &dibs.AcquireOptions{Permits: 3}
		ctx := t.Context()
		var leases []*dibs.Lease
		for range 3 {
			lease, err := c.Acquire(ctx, "k", o)
			testkit.Must(t, err)
			leases, ctx = append(leases, lease), lease.Context()
		}
		start := time.Now()
		waiting, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		if _, err := c.Acquire(waiting, "k", o); !errors.Is(err, dibs.ErrHeld) || time.Since(start) > 0 {
			t.Errorf("a fourth: %v after %v", err, time.Since(start))
		}
		for _, lease := range leases {
			release(t, lease)
		}
		lease, err := c.Acquire(context.WithoutCancel(ctx), "k", nil)
		if err != nil {
			t.Fatalf("when it holds none: %v", err)
		}
		release(t, lease)
	})
}

// Readers share the key, a writer is alone, and each has its turn in the order of arrival.
func TestReadersAndWriters(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		start := time.Now()
		granted := make(chan string, 10)
		caller := func(name string, take func() (*dibs.Lease, error)) {
			go func() {
				lease, err := take()
				if err != nil {
					t.Error(err)
					return
				}
				granted <- name + " after " + time.Since(start).String()
				time.Sleep(time.Second)
				release(t, lease)
			}()
			synctest.Wait()
		}
		reads := func() (*dibs.Lease, error) { return c.RLock(t.Context(), "k", nil) }
		caller("reader", reads)
		caller("reader", reads)
		caller("writer", func() (*dibs.Lease, error) { return c.Lock(t.Context(), "k", nil) })
		caller("reader", reads)
		caller("reader", reads)
		caller("mutex", func() (*dibs.Lease, error) { return c.Acquire(t.Context(), "k", nil) })
		caller("reader", reads)
		time.Sleep(time.Minute)
		for _, want := range []string{
			"reader after 0s", "reader after 0s", "writer after 1s", "reader after 2s", "reader after 2s", "mutex after 3s", "reader after 4s",
		} {
			if got := <-granted; got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
		if _, err := c.RLock(t.Context(), "k", &dibs.AcquireOptions{Weight: 2}); err == nil {
			t.Error("a reader with a weight of its own was granted")
		}
		empty(t, s)
	})
}
