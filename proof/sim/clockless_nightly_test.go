//go:build nightly

package sim_test

import (
	"math/rand/v2"
	"testing"

	"github.com/dibs-go/dibs/proof/sim"
)

// TestManyNoClock runs ten thousand worlds without a right clock, of new seeds. What fails is
// repeated with TestNoClock, by the seed that is printed.
func TestManyNoClock(t *testing.T) { withoutClock(t, rand.Uint64N(1e15), 10_000) }

// TestManyHistories simulates ten thousand histories of new seeds, and checks each. What
// fails is repeated with TestHistories, by the command that is printed.
func TestManyHistories(t *testing.T) {
	lookAt(t, rand.Uint64N(1e15), 10_000, 1, &sim.Options{})
}
