package sim_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/proof/check"
	"github.com/dibs-go/dibs/proof/history"
	"github.com/dibs-go/dibs/proof/sim"
	"github.com/dibs-go/dibs/proof/workload"
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

// To look at one seed again, a few times because the scheduler has its say:
//
//	go test -run TestHistories ./sim -args -seed 17 -histories 1 -times 20
var (
	firstSeed = flag.Uint64("seed", 1, "the first `seed` of TestHistories")
	histories = flag.Int("histories", 1000, "how many `histories` TestHistories looks at, each of the next seed")
	times     = flag.Int("times", 1, "how often TestHistories runs each seed")
	kind      = flag.String("kind", "", "the one `kind` of keys that TestHistories has; none for all")
)

// TestHistories simulates many small histories, always of the same seeds, and checks each.
// All that can happen in a history happens in one of them.
func TestHistories(t *testing.T) {
	seen := lookAt(t, *firstSeed, *histories, *times, &sim.Options{Only: workload.Kind(*kind)})
	if flag.NFlag() > 0 && *histories < 1000 {
		return
	}
	for _, what := range all {
		if seen[what] == 0 {
			t.Errorf("no history has %q", what)
		}
	}
}

// lookAt simulates and checks n histories, each of the next seed, and returns how often
// something happened in them.
func lookAt(t *testing.T, first uint64, n, times int, o *sim.Options) (seen tally) {
	t.Helper()
	began := time.Now()
	var next, operations, failures atomic.Int64
	var mu sync.Mutex
	seen = tally{}
	t.Run("", func(t *testing.T) {
		for i := range runtime.GOMAXPROCS(0) {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				for failures.Load() < 3 {
					i := next.Add(1) - 1
					if i >= int64(n) {
						return
					}
					for range times {
						r := run(t, first+uint64(i), o)
						mu.Lock()
						seen.add(r.Events)
						mu.Unlock()
						v := verdict(r)
						operations.Add(int64(v.Operations))
						if !v.OK() {
							failures.Add(1)
							report(t, r, v)
							break
						}
					}
				}
			})
		}
	})
	t.Logf("%d histories from seed %d on, of %d operations, in %v", n*times, first, operations.Load(), time.Since(began).Round(time.Second))
	return seen
}

// found are seeds that have found something, which is mended. They say less with every
// change of what a seed means: what was found has tests of its own, in the root package.
var found = map[uint64]string{
	45915: "Save, and Step with it, waited past the end of the lease for a store that did not answer",
}

func TestFoundSeeds(t *testing.T) {
	for seed, what := range found {
		if r := run(t, seed, nil); !verdict(r).OK() {
			t.Log(what)
			report(t, r, verdict(r))
		}
	}
}

// verdict checks a history. Time is simulated, and exact. The models take milliseconds for
// nearly all histories, and most of a minute for a few in which the store is down while
// many ask.
func verdict(r *sim.Result) *check.Verdict {
	return check.History(r.Events, &check.Options{
		Slack: time.Millisecond, Reaction: time.Millisecond, Settling: time.Millisecond,
		Forgets: []string{sim.Forgets}, Left: r.Left, Timeout: 5 * time.Minute,
	})
}

// report says what is wrong with a history, and prints what it has of those keys.
func report(t *testing.T, r *sim.Result, v *check.Verdict) {
	t.Helper()
	var text strings.Builder
	testkit.Check(t, v.WriteText(&text))
	keys := map[string]bool{"": true}
	for _, x := range v.Violations {
		keys[x.Key] = true
	}
	for _, e := range r.Events {
		if (keys[e.Key] || len(v.Violations) == 0) && (e.Kind != history.Fault || e.Process == 0) {
			line, err := json.Marshal(e)
			testkit.Check(t, err)
			text.Write(line)
			text.WriteByte('\n')
		}
	}
	t.Errorf("seed %d:\n%s\ngo test -run TestHistories ./sim -args -seed %d -histories 1 -times 20", r.Seed, text.String(), r.Seed)
}

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
