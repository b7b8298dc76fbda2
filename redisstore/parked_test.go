package redisstore

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// TestParkedAreSwept: places that nobody listened for, and that have run out, do
// not gather while the queue lasts, and no queue is gone through to find them.
func TestParkedAreSwept(t *testing.T) {
	t.Parallel()
	const rounds, dead, place = 50, 20, 5 * time.Millisecond
	server := servertest.Redis(t, nil)
	s := open(t, server.URL(), nil)
	park(t, s, time.Hour, 1) // the queue lasts
	for range rounds {
		park(t, s, place, dead)
		time.Sleep(2 * place) // they have run out
	}
	if n := server.Must("HLEN", newName(s, key("k"), 'w')); n.(int64) > rounds*dead/2 {
		t.Errorf("of %d parked places %d are there, though all but one have run out", rounds*dead, n)
	}
	if stats := server.Info("cmdstat_hgetall"); stats != "" {
		t.Errorf("all places were read: %s", stats)
	}
}

// park has waiters that nobody listens for wait for a lease to end.
func park(t *testing.T, s *Store, place time.Duration, n int) {
	t.Helper()
	holder := lock("k")
	mustGrant(t, s, holder)
	claims, answers := make([]dibs.Claim, n), make([]dibs.Answer, n)
	for i := range claims {
		claims[i] = lock("k", queued, func(c *dibs.Claim) { c.Place = place })
	}
	all := s.claims(claims, answers)
	all[0].call.args[0] = s.names.channel("", "nobody")
	if err := s.run(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	mustSettle(t, s, holder, dibs.Release)
}
