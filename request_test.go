package dibs_test

import (
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

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
