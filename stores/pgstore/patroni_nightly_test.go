//go:build nightly

package pgstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestStoppedPatroni: while the old primary continues without its Patroni, an address with Patroni's
// health check leads to the new primary. A list of hosts may lead to the old one, which grants nothing.
func TestStoppedPatroni(t *testing.T) {
	t.Parallel()
	c := servertest.Patroni(t, nil)
	for {
		primary, err := c.Primary()
		testkit.Must(t, err)
		if primary == c.Nodes[0] {
			break
		}
		testkit.Must(t, c.Switchover())
		testkit.Must(t, c.Await())
	}
	migrated := open(t, c.URL(), nil)
	testkit.Must(t, migrated.Close())
	before, err := c.TimelineAfter(0)
	testkit.Must(t, err)
	c.Nodes[0].Pause()
	_, err = c.TimelineAfter(before)
	testkit.Must(t, err)

	ask := func(s *Store, limit time.Duration) (store.Answer, error) {
		claim := store.Claim{Key: store.Key{Name: "k"}, Token: store.NewToken(), TTL: time.Hour, Permits: 1, Weight: 1}
		answers := make([]store.Answer, 1)
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		err := s.Claim(ctx, []store.Claim{claim}, answers)
		return answers[0], err
	}
	listed := open(t, c.HostsURL(), nil)
	if a, err := ask(listed, 2*time.Second); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the old primary answers with %v, %v", a, err)
	}
	var through *Store
	testkit.Eventually(t, "the address leads to the new primary", func() bool {
		through, err = Open(t.Context(), c.URL(), nil)
		return err == nil
	})
	t.Cleanup(func() { testkit.Check(t, through.Close()) })
	testkit.Eventually(t, "the new primary grants", func() bool {
		a, err := ask(through, testkit.Limit)
		return err == nil && a.State == store.Granted
	})
	c.Nodes[0].Continue()
	testkit.Eventually(t, "the list leads to the new primary", func() bool {
		a, err := ask(listed, testkit.Limit)
		return err == nil && a.State == store.Held
	})
}
