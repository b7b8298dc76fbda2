//go:build nightly

package sim_test

import (
	"math/rand/v2"
	"testing"
)

// TestManyNoClock runs ten thousand worlds without a right clock, of new seeds. What fails is
// repeated with TestNoClock, by the seed that is printed.
func TestManyNoClock(t *testing.T) { withoutClock(t, rand.Uint64N(1e15), 10_000) }
