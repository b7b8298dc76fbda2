package redisstore

import (
	"testing"

	"github.com/dibs-go/dibs"
)

// TestIdle: who is kept from the key by a place that nobody has redeemed is told so.
func TestIdle(t *testing.T) {
	t.Parallel()
	s := open(t, ownURL(), nil)
	two := func(c *dibs.Claim) { c.Permits = 2 }
	from := func(place dibs.Claim) func(*dibs.Claim) {
		return func(c *dibs.Claim) { c.Redeems = place.Token }
	}
	idle := func(what string, want bool, edits ...func(*dibs.Claim)) {
		t.Helper()
		a, err := claim(t, s, lock("k", append(edits, two)...))
		if err != nil || a.State != dibs.Held || a.Idle != want {
			t.Errorf("%s was answered %+v, %v; want it held, and idle: %v", what, a, err, want)
		}
	}
	first, second, third := lock("k", reserved, two), lock("k", reserved, two), lock("k", reserved, two)
	for _, place := range []dibs.Claim{first, second, third} {
		mustWait(t, s, place)
	}
	mustGrant(t, s, lock("k", two, from(first)))
	idle("one that tries", true)
	idle("one that queues", true, queued)
	idle("one that looks", true, looks)
	idle("one that looks from the third place", true, looks, from(third))
	idle("one that claims from the third place", true, from(third))
	idle("one that reserves", true, reserved)
	idle("the second place itself, which nothing keeps", false, reserved, func(c *dibs.Claim) { c.Token = second.Token })
	idle("one that claims from the taken place", false, from(first))
	idle("one that looks from the taken place", false, looks, from(first))

	mustGrant(t, s, lock("k", two, from(second)))
	idle("one that tries when no permit is free", false)
	idle("one that looks from the third place when no permit is free", false, looks, from(third))
}
