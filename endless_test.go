package dibs_test

import (
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
)

// An undo is tried for as long as the lease or the place can last, however long that is.
func TestUndoOfWhatLastsForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c := newClient(t, s, nil)
		cut := func(string) error { return errCut }
		s.set(nil, cut) // everything happens, no answer arrives
		if _, _, err := c.Reserve(t.Context(), "place", math.MaxInt64, nil); !errors.Is(err, dibs.ErrStore) {
			t.Errorf("got %v", err)
		}
		if _, err := c.Acquire(t.Context(), "lease", &dibs.AcquireOptions{TTL: math.MaxInt64}); !errors.Is(err, dibs.ErrStore) {
			t.Errorf("got %v", err)
		}
		s.set(nil, nil)
		time.Sleep(2 * time.Second)
		empty(t, s)
	})
}
