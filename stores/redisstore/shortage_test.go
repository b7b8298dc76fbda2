package redisstore

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestOutOfMemoryWithPlaces: a lease ends, and others go on, without memory even
// where a place goes or stands, or progress is passed on.
func TestOutOfMemoryWithPlaces(t *testing.T) {
	t.Parallel()
	reserved := func(c *store.Claim) { c.Mode = store.Reserve }
	two := func(c *store.Claim) { c.Permits = 2 }
	for _, x := range []struct {
		name    string
		outcome store.Outcome
		left    bool // the reserved place still stands
	}{
		{"Release", store.Release, false}, {"Keep", store.Keep, false}, {"Abandon", store.Abandon, true}, {"Undo", store.Undo, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t, nil)
			s := open(t, server.URL(), nil)
			blocker, place, next := lock("k"), lock("k", reserved), lock("k", reserved)
			mustGrant(t, s, blocker)
			mustWait(t, s, place)
			mustWait(t, s, next)
			mustSettle(t, s, blocker, store.Release)
			worker := lock("k", func(c *store.Claim) { c.From = place.Token })
			mustGrant(t, s, worker)
			server.Must("CONFIG", "SET", "maxmemory", 1<<20)
			mustSettle(t, s, worker, x.outcome)
			other := lock("k", func(c *store.Claim) { c.From = next.Token })
			a, err := claim(t, s, other)
			if want := map[bool]store.State{true: store.Held, false: store.Granted}[x.left]; err != nil || a.State != want {
				t.Errorf("the place behind it was answered %+v, %v; want state %d", a, err, want)
			}
		})
	}
	t.Run("Renew", func(t *testing.T) {
		t.Parallel()
		server := servertest.Redis(t, nil)
		s := open(t, server.URL(), nil)
		alive, place := lock("k", two), lock("k", two, reserved)
		mustGrant(t, s, alive)
		mustWait(t, s, place)
		dead := lock("k", two, func(c *store.Claim) { c.From = place.Token })
		mustGrant(t, s, dead)
		testkit.Must(t, renewal(t.Context(), s, store.Renewal{Key: dead.Key, Token: dead.Token, TTL: 50 * time.Millisecond, Progress: []byte("half")}))
		server.Must("CONFIG", "SET", "maxmemory", 1<<20)
		testkit.Eventually(t, "the other lease has run out", func() bool {
			a, err := claim(t, s, lock("k", two, func(c *store.Claim) { c.Mode = store.Look; c.From = place.Token }))
			return err == nil && a.State == store.Free
		})
		if answer, err := renew(t, s, alive); answer != nil || err != nil {
			t.Errorf("the live lease's renewal was answered %v, %v", answer, err)
		}
		mustSettle(t, s, alive, store.Release)
	})
}
