package sim_test

import (
	"fmt"
	"reflect"
	"runtime/debug"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/dibs-go/dibs/proof/history"
	"github.com/dibs-go/dibs/proof/sim"
)

// Each history makes much that is soon of no use. To collect it more rarely saves a fifth
// of the time.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	m.Run()
}

// run runs one simulation in a bubble of its own.
func run(t *testing.T, seed uint64, o *sim.Options) (r *sim.Result) {
	t.Helper()
	synctest.Test(t, func(*testing.T) { r = sim.Run(seed, o) })
	return r
}

// A seed always gives the same scenario, and mostly the same history.
func TestSeedsRepeat(t *testing.T) {
	const seeds = 10
	same := 0
	for seed := range uint64(seeds) {
		one, other := run(t, seed, nil).Events, run(t, seed, nil).Events
		if reflect.DeepEqual(one, other) {
			same++
		}
		if a, b := fates(one), fates(other); !slices.Equal(a, b) {
			t.Errorf("seed %d: %v, and then %v", seed, a, b)
		}
	}
	t.Logf("%d of %d seeds gave the same history twice", same, seeds)
}

// fates says what befell the processes and the store, and when.
func fates(events []history.Event) (all []string) {
	for _, e := range events {
		switch {
		case e.Kind == history.Fault && !slices.Contains([]string{"requests dropped", "answers dropped", "partition", "restart", sim.Forgets}, e.Name):
		case e.Kind == history.Killed, e.Kind == history.Stopped, e.Kind == history.FaultsEnd, e.Kind == history.Fault:
			all = append(all, fmt.Sprintf("%s %s %d %v", e.Kind, e.Name, e.Process, e.Call))
		}
	}
	slices.Sort(all)
	return all
}

// tally counts what happens in histories.
type tally map[string]int

// add counts what happened in the events.
func (n tally) add(events []history.Event) {
	for _, e := range events {
		n[string(e.Kind)]++
		for _, what := range []string{e.Mode, e.Outcome, e.State, e.Name} {
			if what != "" {
				n[string(e.Kind)+" "+what]++
			}
		}
		if e.Error == history.Lost || e.Error == history.Unknown {
			n[string(e.Kind)+" "+e.Error]++
		}
		if e.From != "" {
			n["from a place "+e.Mode+" "+e.State]++
		}
		if e.Weight > 1 && e.State == "granted" {
			n["weighs more"]++
		}
		if e.Attempt > 1 {
			n["taken over"]++
		}
	}
}

// all is what can happen in a history.
var all = []string{
	"claim try", "claim queue", "claim reserve",
	"claim granted", "claim held", "claim done", "claim mismatch", "claim unknown",
	"renew lost", "settle release", "settle keep", "settle abandon", "settle undo", "settle lost",
	"pushed granted", "enter", "leave", "leave lost", "reply",
	"killed", "stopped", "faults end", "from a place try granted", "from a place queue granted", "from a place queue held", "weighs more", "taken over",
	"fault delay", "fault lost request", "fault lost answer", "fault sent twice",
	"fault requests dropped", "fault answers dropped", "fault partition", "fault restart", "fault " + sim.Forgets,
}
