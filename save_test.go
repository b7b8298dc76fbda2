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
	"github.com/dibs-go/dibs/memstore"
)

// hanging is a store that does not answer some renewals.
type hanging struct {
	*memstore.Store
	hangs func(dibs.Renewal) bool
}

func (h *hanging) Batching() dibs.Batching { return dibs.Batching{} }

func (h *hanging) Renew(ctx context.Context, renewals []dibs.Renewal, errs []error) error {
	if slices.ContainsFunc(renewals, h.hangs) {
		<-ctx.Done()
		return ctx.Err()
	}
	return h.Store.Renew(ctx, renewals, errs)
}

// TestSaveEndsWithTheLease: a holder that saves to a store that does not answer stops
// when its lease is over, so that its section does, and goes on with one that others
// have renewed meanwhile. (Found by proof/sim.)
func TestSaveEndsWithTheLease(t *testing.T) {
	for _, test := range []struct {
		name  string
		hangs func(saves int32, r dibs.Renewal) bool
		want  error
		takes time.Duration
	}{
		{"nothing is answered", func(int32, dibs.Renewal) bool { return true }, dibs.ErrStore, 979 * time.Millisecond},
		{"the first save is not", func(saves int32, r dibs.Renewal) bool { return r.Progress != nil && saves == 1 }, nil, 979 * time.Millisecond},
		{"no save is", func(_ int32, r dibs.Renewal) bool { return r.Progress != nil }, dibs.ErrStore, 5 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var saves atomic.Int32
				s := &hanging{newStore(t), func(r dibs.Renewal) bool {
					if r.Progress != nil {
						saves.Add(1)
					}
					return test.hangs(saves.Load(), r)
				}}
				c := newClient(t, s, &dibs.Options{TTL: time.Second})
				lease, err := c.Acquire(t.Context(), "k", nil)
				if err != nil {
					t.Fatal(err)
				}
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
