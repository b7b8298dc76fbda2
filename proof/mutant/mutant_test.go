package mutant_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/proof/check"
	"github.com/dibs-go/dibs/proof/mutant"
	"github.com/dibs-go/dibs/proof/sim"
)

// catches are the seed, for each mutant, of a history that catches it, however its
// goroutines are scheduled. TestHistories of proof/sim looks at the same history of the
// unbroken store.
var catches = map[string]uint64{
	"no-undo":          3,
	"no-trust":         9,
	"renewal-revives":  29,
	"settle-any-token": 1,
	"stale-record":     3,
	"barging":          4,
	"stranded":         6,
	"half-record":      1,
	"old-record":       6,
	"unwritten-record": 18,
	"other-bytes":      1,
	"answer-lost":      1,
	"fence-repeats":    1,
	"fence-falls":      1,
	"permit-too-many":  1,
	"weight-ignored":   1,
	"permits-stay":     1,
	"undo-counts":      35,
	"lease-short":      10,
	"claim-anew":       1,
	"place-lost":       243,
	"mismatch-ignored": 4,
}

// TestSimulationCatches: the simulation catches each mutant.
func TestSimulationCatches(t *testing.T) {
	for _, m := range mutant.All() {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			if m.About == "" {
				t.Error("it does not say what is broken")
			}
			o := &sim.Options{Server: m.Wrap}
			if m.Client {
				o = &sim.Options{Client: m.Wrap}
			}
			known, ok := catches[m.Name]
			if !ok {
				t.Error("there is no seed for it")
			}
			if v := simulate(t, known, o); len(v.Violations) > 0 {
				t.Logf("seed %d: %s: %s", known, v.Violations[0].Name, v.Violations[0].Text)
				return
			}
			for seed := range uint64(1000) {
				if len(simulate(t, seed+1, o).Violations) > 0 {
					t.Fatalf("seed %d does not catch it, but seed %d does: if seeds mean something else now, note that one", known, seed+1)
				}
			}
			t.Error("none of the seeds 1 to 1000 catches it")
		})
	}
}

// simulate runs a simulation and checks its history.
func simulate(t *testing.T, seed uint64, o *sim.Options) *check.Verdict {
	t.Helper()
	var r *sim.Result
	synctest.Test(t, func(*testing.T) { r = sim.Run(seed, o) })
	return check.History(r.Events, &check.Options{
		Slack: time.Millisecond, Reaction: time.Millisecond, Settling: time.Millisecond,
		Forgets: []string{sim.Forgets}, Left: r.Left,
	})
}
