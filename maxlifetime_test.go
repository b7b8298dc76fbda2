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

// TestMaxLifetime: a lease ends when it has lasted for MaxLifetime, although it could be renewed. A
// holder that hangs keeps its key for no longer than MaxLifetime and a TTL.
func TestMaxLifetime(t *testing.T) {
	for _, lifetime := range []time.Duration{time.Millisecond, time.Second, 9500 * time.Millisecond, 10 * time.Second, time.Hour} {
		t.Run(lifetime.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t)
				c, other := newClient(t, s, &dibs.Options{TTL: 10 * time.Second}), newClient(t, s, nil)
				start := time.Now()
				lease := acquire(t, c, "k", &dibs.AcquireOptions{MaxLifetime: lifetime})
				<-lease.Context().Done()
				if took, cause := time.Since(start), context.Cause(lease.Context()); took != lifetime || !errors.Is(cause, dibs.ErrLost) {
					t.Errorf("it ended after %v with %v", took, cause)
				}
				next := acquire(t, other, "k", nil)
				if took := time.Since(start); took > lifetime+10*time.Second+time.Second || next.Attempt() != 2 {
					t.Errorf("another caller got it after %v, as attempt %d", took, next.Attempt())
				}
				if err := lease.Release(); !errors.Is(err, dibs.ErrLost) {
					t.Errorf("Release returned %v", err)
				}
				testkit.Check(t, next.Release())
			})
		})
	}
}

// TestMaxLifetimeAfterAWait: the time counts from the grant, not from the start of the wait.
func TestMaxLifetimeAfterAWait(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		if _, err := c.Acquire(t.Context(), "k", &dibs.AcquireOptions{MaxLifetime: -1}); err == nil {
			t.Error("a negative MaxLifetime is accepted")
		}
		first := acquire(t, c, "k", nil)
		time.AfterFunc(time.Hour, func() { _ = first.Release() })
		second := acquire(t, c, "k", &dibs.AcquireOptions{MaxLifetime: time.Minute})
		start := time.Now()
		<-second.Context().Done()
		if took := time.Since(start); took < 59*time.Second || took > time.Minute {
			t.Errorf("it ended %v after the grant", took)
		}
	})
}
