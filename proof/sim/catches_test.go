package sim_test

import (
	"slices"
	"testing"

	"github.com/dibs-go/dibs/proof/check"
	"github.com/dibs-go/dibs/proof/sim"
)

// catches are, for each mutant, the seed of a history that catches it, however its goroutines
// are scheduled, and the rule that it breaks. TestHistories looks at the same history
// of the unbroken store.
var catches = map[string]struct {
	seed uint64
	rule string
}{
	"no-undo":          {3, "left"},
	"no-trust":         {9, "lease"},
	"trust-unsettled":  {942, "sections"},
	"renewal-revives":  {29, "lease"},
	"settle-any-token": {1, "lease"},
	"stale-record":     {55, "lease"},
	"barging":          {3, "order"},
	"stranded":         {8, "progress"},
	"half-record":      {2, "register"},
	"old-record":       {6, "register"},
	"unwritten-record": {18, "register"},
	"other-bytes":      {2, "register"},
	"answer-lost":      {2, "register"},
	"fence-repeats":    {1, "fences"},
	"fence-falls":      {1, "fences"},
	"permit-too-many":  {1, "lease"},
	"weight-ignored":   {1, "lease"},
	"permits-stay":     {3, "lease"},
	"undo-counts":      {48, "lease"},
	"lease-short":      {3, "lease"},
	"session-ends":     {1, "sections"},
	"claim-anew":       {1, "lease"},
	"place-lost":       {471, "places"},
	"mismatch-ignored": {2, "register"},
}

// TestSimulationCatches: the simulation catches each mutant.
func TestSimulationCatches(t *testing.T) {
	for _, m := range mutants {
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
			broken := func(seed uint64) bool {
				return slices.ContainsFunc(verdict(run(t, seed, o)).Violations, func(v check.Violation) bool { return v.Name == known.rule })
			}
			if broken(known.seed) {
				return
			}
			for seed := range uint64(1000) {
				if broken(seed + 1) {
					t.Fatalf("seed %d does not break the rule %q, but seed %d does: if seeds mean something else now, note that one", known.seed, known.rule, seed+1)
				}
			}
			t.Errorf("none of the seeds 1 to 1000 breaks the rule %q", known.rule)
		})
	}
}
