//go:build nightly

package sim_test

import (
	"math/rand/v2"
	"testing"

	"github.com/dibs-go/dibs/proof/sim"
)

// TestManyHistories simulates ten thousand histories of new seeds, and checks each. What
// fails is repeated with TestHistories, by the command that is printed.
func TestManyHistories(t *testing.T) {
	lookAt(t, rand.Uint64N(1e15), 10_000, 1, &sim.Options{})
}
