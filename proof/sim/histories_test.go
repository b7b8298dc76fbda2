package sim_test

import (
	"encoding/json"
	"flag"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs/proof/check"
	"github.com/dibs-go/dibs/proof/history"
	"github.com/dibs-go/dibs/proof/sim"
)

// To look at one seed again, a few times because the scheduler has its say:
//
//	go test -run TestHistories ./sim -args -seed 17 -histories 1 -times 20
var (
	firstSeed = flag.Uint64("seed", 0, "the first `seed` of TestHistories; 0 for a random one")
	histories = flag.Int("histories", manyHistories, "how many `histories` TestHistories looks at, each of the next seed")
	times     = flag.Int("times", 1, "how often TestHistories runs each seed")
	kind      = flag.String("kind", "", "the one `kind` of keys that TestHistories has; none for all")
)

// TestHistories simulates many small histories and checks each. Without the race
// detector it looks at 10,000 of them; with it, which is ten times as slow, at fewer.
func TestHistories(t *testing.T) {
	first := *firstSeed
	if first == 0 {
		first = rand.Uint64N(1e15)
	}
	t.Logf("%d histories from -seed %d on", *histories, first)
	began := time.Now()
	var next, operations, events, failures atomic.Int64
	t.Run("", func(t *testing.T) {
		for n := range runtime.GOMAXPROCS(0) {
			t.Run(strconv.Itoa(n), func(t *testing.T) {
				t.Parallel()
				for failures.Load() < 3 {
					i := next.Add(1) - 1
					if i >= int64(*histories) {
						return
					}
					for range *times {
						r := run(t, first+uint64(i), &sim.Options{Only: sim.Kind(*kind)})
						operations.Add(int64(r.Operations))
						events.Add(int64(len(r.Events)))
						if v := verdict(r); !v.OK() {
							failures.Add(1)
							report(t, r, v)
							break
						}
					}
				}
			})
		}
	})
	t.Logf("%d histories of %d operations and %d events in %v", *histories**times, operations.Load(), events.Load(), time.Since(began).Round(time.Second))
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

// verdict checks a history. Time is simulated, and exact. A few histories, in which the store
// is down while many ask, take the models most of a minute, and longer on a busy machine.
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
	if err := v.WriteText(&text); err != nil {
		t.Error(err)
	}
	keys := map[string]bool{"": true}
	for _, x := range v.Violations {
		keys[x.Key] = true
	}
	for _, e := range r.Events {
		if (keys[e.Key] || len(v.Violations) == 0) && (e.Kind != history.Fault || e.Process == 0) {
			line, err := json.Marshal(e)
			if err != nil {
				t.Error(err)
			}
			text.Write(line)
			text.WriteByte('\n')
		}
	}
	t.Errorf("seed %d:\n%s\ngo test -run TestHistories ./sim -args -seed %d -histories 1 -times 20", r.Seed, text.String(), r.Seed)
}
