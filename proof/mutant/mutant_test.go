package mutant_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/proof/check"
	"github.com/dibs-go/dibs/proof/mutant"
	"github.com/dibs-go/dibs/proof/sim"
)

// Each mutant is caught by the simulation, in a history in which the unbroken one is
// not.
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
			began := time.Now()
			for seed := range uint64(maxHistories) {
				v := simulate(t, seed, o)
				if len(v.Violations) == 0 {
					continue
				}
				x := v.Violations[0]
				t.Logf("caught in history %d after %v: %s: %s", seed, time.Since(began).Round(time.Millisecond), x.Name, x.Text)
				if v := simulate(t, seed, nil); !v.OK() {
					t.Errorf("seed %d: the unbroken one is caught too: %v", seed, v.Violations)
				}
				return
			}
			t.Errorf("not caught in %d histories", maxHistories)
		})
	}
}

// maxHistories is in how many histories each mutant has to be caught: some seconds.
const maxHistories = 1000

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

// Mutants are found by their names, which differ.
func TestNamed(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range mutant.All() {
		if seen[m.Name] {
			t.Errorf("two mutants are called %s", m.Name)
		}
		seen[m.Name] = true
		if got, ok := mutant.Named(m.Name); !ok || got.About != m.About {
			t.Errorf("Named(%q) is %q, %v", m.Name, got.Name, ok)
		}
	}
	if m, ok := mutant.Named("none"); ok {
		t.Errorf("there is a mutant %q called none", m.Name)
	}
}
