package dibs_test

import (
	"context"
	"errors"
	"testing"
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
