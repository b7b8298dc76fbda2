//go:build nightly

package fault_test

import (
	"math/rand/v2"
	"testing"

	"github.com/dibs-go/dibs/proof/fault"
	"github.com/dibs-go/dibs/proof/target"
)

// Every fault bites every store that it applies to, and heals: all workers go on.
func TestBites(t *testing.T) {
	t.Parallel()
	for _, v := range target.Kinds() {
		if v.Name == "valkey" || v.Name == "mysql" {
			continue // they are asked in the words of redis and mariadb
		}
		t.Run(v.Name, func(t *testing.T) {
			t.Parallel()
			target := v.New(t)
			c := newCrew(t, target, 3)
			apply, absent, err := fault.Select(target, "")
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range absent {
				t.Logf("%s: %s", a.Name, a.Why)
			}
			r := rand.New(rand.NewPCG(1, 2))
			for _, f := range apply {
				total, strikes := 0, 0
				for ; total == 0 && strikes < 12; strikes++ {
					bites, err := f.Strike(t.Context(), target, r)
					if err != nil {
						t.Fatal(err)
					}
					if bites < 0 {
						t.Fatalf("%s has bitten %d times", f.Name, bites)
					}
					total += bites
				}
				if total == 0 {
					t.Errorf("%s does not bite (%s)", f.Name, f.Bite)
				}
				t.Logf("%s: %d bites in %d strikes", f.Name, total, strikes)
				c.awaitProgress("after " + f.Name)
			}
		})
	}
}
