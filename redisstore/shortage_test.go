package redisstore

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// TestOutOfMemoryWithPlaces: a lease ends, and others go on, without memory also
// where a place goes or stands, or progress is passed on.
func TestOutOfMemoryWithPlaces(t *testing.T) {
	t.Parallel()
	reserved := func(c *dibs.Claim) { c.Mode = dibs.Reserve }
	two := func(c *dibs.Claim) { c.Permits = 2 }
	for _, x := range []struct {
		name    string
		outcome dibs.Outcome
		left    bool // the reserved place still stands
	}{
		{"Release", dibs.Release, false}, {"Keep", dibs.Keep, false}, {"Abandon", dibs.Abandon, true}, {"Undo", dibs.Undo, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t, nil)
			s := open(t, server.URL(), nil)
			blocker, place, next := lock("k"), lock("k", reserved), lock("k", reserved)
			mustGrant(t, s, blocker)
			mustWait(t, s, place)
			mustWait(t, s, next)
			mustSettle(t, s, blocker, dibs.Release)
			worker := lock("k", func(c *dibs.Claim) { c.From = place.Token })
			mustGrant(t, s, worker)
			server.Must("CONFIG", "SET", "maxmemory", 1<<20)
			mustSettle(t, s, worker, x.outcome)
			other := lock("k", func(c *dibs.Claim) { c.From = next.Token })
			a, err := claim(t, s, other)
			if want := map[bool]dibs.State{true: dibs.Held, false: dibs.Granted}[x.left]; err != nil || a.State != want {
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
		dead := lock("k", two, func(c *dibs.Claim) { c.From = place.Token })
		mustGrant(t, s, dead)
		if err := renewal(t.Context(), s, dibs.Renewal{Key: dead.Key, Token: dead.Token, TTL: 50 * time.Millisecond, Progress: []byte("half")}); err != nil {
			t.Fatal(err)
		}
		server.Must("CONFIG", "SET", "maxmemory", 1<<20)
		eventually(t, "the other lease has run out", func() bool {
			a, err := claim(t, s, lock("k", two, func(c *dibs.Claim) { c.Mode = dibs.Look; c.From = place.Token }))
			return err == nil && a.State == dibs.Free
		})
		if answer, err := renew(t, s, alive); answer != nil || err != nil {
			t.Errorf("the live lease's renewal was answered %v, %v", answer, err)
		}
		mustSettle(t, s, alive, dibs.Release)
	})
}
