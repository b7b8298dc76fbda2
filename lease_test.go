package dibs_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

func TestLeaseThatIsTakenAwayIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		c := newClient(t, s, &dibs.Options{TTL: 30 * time.Second})
		start := time.Now()
		err := c.Do(t.Context(), "k", func(ctx context.Context) error {
			if _, err := s.ForceRelease(t.Context(), dibs.Key{Name: "k"}, ""); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if !errors.Is(err, dibs.ErrLost) {
			t.Errorf("Do returned %v", err)
		}
		if d := time.Since(start); d != 10*time.Second {
			t.Errorf("the holder noticed after %v, want a third of the lease", d)
		}
		empty(t, s)
	})
}

// hanging is a store that does not answer some renewals.
type hanging struct {
	*memstore.Store
	hangs func(store.Renewal) bool
}

func (h *hanging) Batching() store.Batching { return store.Batching{} }

func (h *hanging) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	if slices.ContainsFunc(renewals, h.hangs) {
		<-ctx.Done()
		return ctx.Err()
	}
	return h.Store.Renew(ctx, renewals, errs)
}

// TestSaveEndsWithTheLease: a holder that saves to a store that does not answer stops
// when its lease is over, so that its section does, and continues with one that others
// have renewed meanwhile. (Found by proof/sim.)
func TestSaveEndsWithTheLease(t *testing.T) {
	for _, test := range []struct {
		name  string
		hangs func(saves int32, r store.Renewal) bool
		want  error
		takes time.Duration
	}{
		{"nothing is answered", func(int32, store.Renewal) bool { return true }, dibs.ErrStore, 979 * time.Millisecond},
		{"the first save is not", func(saves int32, r store.Renewal) bool { return r.Progress != nil && saves == 1 }, nil, 979 * time.Millisecond},
		{"no save is", func(_ int32, r store.Renewal) bool { return r.Progress != nil }, dibs.ErrStore, 5 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var saves atomic.Int32
				s := &hanging{newStore(t), func(r store.Renewal) bool {
					if r.Progress != nil {
						saves.Add(1)
					}
					return test.hangs(saves.Load(), r)
				}}
				c := newClient(t, s, &dibs.Options{TTL: time.Second})
				lease := acquire(t, c, "k", nil)
				start := time.Now()
				if err := lease.Save(context.Background(), []byte("half")); !errors.Is(err, test.want) {
					t.Errorf("Save returned %v, not %v", err, test.want)
				}
				if took := time.Since(start); took != test.takes {
					t.Errorf("Save took %v, not %v", took, test.takes)
				}
				_ = lease.Release() // ErrLost in the first case
			})
		})
	}
}

// TestSaveTrustsFromItsSending: a store may prolong the lease as soon as it is asked. So the
// holder trusts it from the moment when Save asked, however late the answer comes.
func TestSaveTrustsFromItsSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c := newClient(t, s, &dibs.Options{TTL: 30 * time.Second})
		lease := acquire(t, c, "k", nil)
		time.Sleep(time.Second)
		asked := time.Now()
		s.set(nil, func(string) error { time.Sleep(4 * time.Second); return nil })
		testkit.Must(t, lease.Save(t.Context(), []byte("half")))
		s.set(nil, nil)
		if d := lease.Until().Sub(asked); d <= 29*time.Second || d >= 30*time.Second {
			t.Errorf("trusted until %v after Save asked; want just under 30s", d)
		}
		release(t, lease)
	})
}

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
