package redisstore

import (
	"fmt"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// TestZerosAtTheEnd: a claim is sent without the zero bytes at its end, and fingerprints and
// tokens that end with some are the same afterwards, by the short ways and by the long ones.
func TestZerosAtTheEnd(t *testing.T) {
	t.Parallel()
	s := open(t, servertest.Redis(t, nil).URL(), nil)
	other := dibs.Fingerprint{0: 2}
	for i, print := range []dibs.Fingerprint{{0: 1}, {0: 1, 20: 1}, {0: 1, 31: 1}} {
		with := func(print dibs.Fingerprint) dibs.Claim {
			return lock(fmt.Sprint("key ", i), func(c *dibs.Claim) {
				c.Fingerprint, c.Token[15], c.Stay = print, 0, 0
			})
		}
		first := with(print)
		mustGrant(t, s, first)
		mustGrant(t, s, first) // the same again is the long way
		if a, err := claim(t, s, with(other)); err != nil || a.State != dibs.Mismatch {
			t.Errorf("another fingerprint while it is held: %+v, %v", a, err)
		}
		if a, err := claim(t, s, with(print)); err != nil || a.State != dibs.Held {
			t.Errorf("the same fingerprint while it is held: %+v, %v", a, err)
		}
		if lost, err := settle(t, s, first, dibs.Keep); lost != nil || err != nil {
			t.Fatal(lost, err)
		}
		for print, want := range map[dibs.Fingerprint]dibs.State{print: dibs.Done, other: dibs.Mismatch} {
			c := with(print)
			answered(&c)
			if a, err := claim(t, s, c); err != nil || a.State != want {
				t.Errorf("%x with a record: %+v, %v; want state %v", print, a, err, want)
			}
		}
	}
}
