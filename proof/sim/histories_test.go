package sim_test

import (
	"encoding/json"
	"flag"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/proof/check"
	"github.com/dibs-go/dibs/proof/history"
	"github.com/dibs-go/dibs/proof/sim"
	"github.com/dibs-go/dibs/proof/workload"
)

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
