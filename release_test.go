package dibs_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
)

// refusing is a store that settles nothing, and says why of each.
type refusing struct{ *faulty }

func (refusing) Settle(_ context.Context, _ []dibs.Settlement, errs []error) error {
	for i := range errs {
		errs[i] = dibs.ErrFull
	}
	return nil
}

func TestReleaseThatIsRefusedRunsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c := newClient(t, refusing{s}, nil)
		lease, err := c.Acquire(t.Context(), "k", &dibs.AcquireOptions{TTL: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(); !errors.Is(err, dibs.ErrFull) {
			t.Errorf("got %v, want ErrFull", err)
		}
		if lease.Err() == nil {
			t.Error("the lease's context goes on")
		}
		next, err := newClient(t, s, nil).Acquire(t.Context(), "k", &dibs.AcquireOptions{Wait: 5 * time.Second})
		if err != nil {
			t.Fatalf("the lease is renewed though it was released: %v", err)
		}
		if err := next.Release(); err != nil {
			t.Error(err)
		}
	})
}
