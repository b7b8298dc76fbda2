package dibs_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

func TestHeldAsksWithoutTaking(t *testing.T) {
	inMemory(t, func(t *testing.T, s *memstore.Store, c *dibs.Client) {
		held := func() bool {
			h, err := c.Held(t.Context(), "k")
			testkit.Must(t, err)
			return h
		}
		if held() {
			t.Error("an unused key is held")
		}
		lease := acquire(t, c, "k", &dibs.AcquireOptions{Permits: 2})
		if !held() {
			t.Error("a key that is held is not")
		}
		testkit.Check(t, lease.Release())
		if held() {
			t.Error("a key that was released is held")
		}
		empty(t, s)
	})
}

func TestClaimWhoseAnswerWasLostIsSentAgain(t *testing.T) {
	withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
		lost := false
		s.set(nil, func(verb string) error {
			if verb == "claim" && !lost {
				lost = true
				return errCut
			}
			return nil
		})
		lease := acquire(t, c, "k", nil)
		if lease.Attempt() != 1 {
			t.Errorf("attempt %d", lease.Attempt())
		}
		testkit.Check(t, lease.Release())
		empty(t, s)
	})
}

// fillingUp is a store that grants a first claim, whose answer is lost, and has no
// room for those after it.
type fillingUp struct {
	*faulty
	asked int
}

func (r *fillingUp) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	if r.asked++; r.asked == 1 {
		if err := r.faulty.Claim(ctx, claims, answers); err != nil {
			return err
		}
		return errCut
	}
	for i := range answers {
		answers[i].Err = dibs.ErrFull
	}
	return nil
}

func TestClaimIsUndoneThatIsRefusedWhenSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFaulty(newStore(t))
		c := newClient(t, &fillingUp{faulty: s}, nil)
		if _, err := c.Acquire(t.Context(), "k", nil); !errors.Is(err, dibs.ErrFull) {
			t.Errorf("got %v, want ErrFull", err)
		}
		time.Sleep(time.Second)
		empty(t, s)
	})
}
