package sim_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/proof/sim"
	"github.com/dibs-go/dibs/stores/casstore"
)

// To look at one seed again:
//
//	go test -run TestNoClock$ ./sim -args -clockless-seed 17 -clockless 1
var (
	clocklessSeed = flag.Uint64("clockless-seed", 1, "the first `seed` of TestNoClock")
	enough        = flag.Int("enough", 1, "after how many `overlaps` TestNoClockCatches stops")
	clockless     = flag.Int("clockless", 200, "how many `histories` TestNoClock looks at, each of the next seed")
)

// TestNoClock: a store over compare-and-swap never has two holders of a key, whatever the wall clocks
// say, with monotonic clocks that differ by a tenth and clients that leave that margin.
func TestNoClock(t *testing.T) { withoutClock(t, *clocklessSeed, *clockless) }

// mostTicks bounds how long the key of a dead holder stays taken after its TTL.
const mostTicks = 5

func withoutClock(t *testing.T, first uint64, n int) {
	began := time.Now()
	late, sections := 0.0, 0
	for r := range worlds(t, &sim.Clockless{}, first, n) {
		sections += len(r.Sections)
		late = max(late, r.Late)
		if wrong := judge(r); len(wrong) > 0 {
			t.Errorf("seed %d: %q", r.Seed, wrong)
		}
		if r.Late > mostTicks {
			t.Errorf("seed %d: the key of a dead holder stayed taken for its TTL and %.1f ticks", r.Seed, r.Late)
		}
	}
	if sections < 2*n {
		t.Errorf("%d histories have %d sections", n, sections)
	}
	t.Logf("%d histories from seed %d on, %d sections, a dead holder's key was taken for %.1f ticks after its TTL at most; in %v",
		n, first, sections, late, time.Since(began).Round(time.Second))
}

// judge returns what is wrong with the sections of a history, and what is left of them.
func judge(r *sim.ClocklessResult) (wrong []string) {
	wrong = slices.Clone(r.Left)
	all := slices.SortedFunc(slices.Values(r.Sections), func(x, y sim.Section) int { return cmp.Compare(x.From, y.From) })
	last := map[string]sim.Section{}
	for _, x := range all {
		before, ok := last[x.Key]
		switch {
		case ok && x.From < before.To:
			wrong = append(wrong, fmt.Sprintf("overlap: %+v while %+v", x, before))
		case ok && x.Fence <= before.Fence:
			wrong = append(wrong, fmt.Sprintf("fence: %+v after %+v", x, before))
		}
		if !ok || x.To > before.To {
			last[x.Key] = x
		}
	}
	return wrong
}

// worlds runs n worlds, each of the next seed.
func worlds(t *testing.T, o *sim.Clockless, first uint64, n int) func(func(*sim.ClocklessResult) bool) {
	return func(yield func(*sim.ClocklessResult) bool) {
		var mu sync.Mutex
		var next atomic.Int64
		var stop atomic.Bool
		t.Run("", func(t *testing.T) {
			for i := range runtime.GOMAXPROCS(0) {
				t.Run(strconv.Itoa(i), func(t *testing.T) {
					t.Parallel()
					for !stop.Load() {
						i := next.Add(1) - 1
						if i >= int64(n) {
							return
						}
						var r *sim.ClocklessResult
						synctest.Test(t, func(*testing.T) { r = o.Run(first + uint64(i)) })
						mu.Lock()
						if !stop.Load() && !yield(r) {
							stop.Store(true)
						}
						mu.Unlock()
					}
				})
			}
		})
	}
}

// wrongClocks are mistakes in a clock. Each makes leases end early.
var wrongClocks = []struct {
	name  string
	late  bool // requests are
	clock func(kv casstore.KV, o *casstore.RegisterOptions) casstore.Clock
}{
	{"what ends is over by the upper bound", false, func(kv casstore.KV, o *casstore.RegisterOptions) casstore.Clock {
		return bounds{casstore.NewRegister(kv, o), func(_, most int64) (int64, int64) { return most, most }}
	}},
	{"there is one bound", false, func(kv casstore.KV, o *casstore.RegisterOptions) casstore.Clock {
		return bounds{casstore.NewRegister(kv, o), func(least, _ int64) (int64, int64) { return least, least }}
	}},
	{"time counts from sending", true, func(kv casstore.KV, o *casstore.RegisterOptions) casstore.Clock {
		return casstore.NewRegister(&fromSending{KV: kv, monotonic: o.Monotonic, took: map[string]time.Duration{}, extra: map[string]time.Duration{}}, o)
	}},
}

// bounds is a clock with other bounds.
type bounds struct {
	casstore.Clock
	change func(least, most int64) (int64, int64)
}

func (b bounds) Now(ctx context.Context) (int64, int64, error) {
	least, most, err := b.Clock.Now(ctx)
	least, most = b.change(least, most)
	return least, most, err
}

// fromSending adds what the call took that received a state of the register to the time for which that
// state is said to have lasted.
type fromSending struct {
	casstore.KV
	monotonic func() time.Duration

	mu    sync.Mutex
	took  map[string]time.Duration // by version
	extra map[string]time.Duration // what is in it that the register does not know of
}

func (f *fromSending) received(version string, sent, extra time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.took[version]; !ok {
		f.took[version], f.extra[version] = f.monotonic()-sent, extra
	}
}

func (f *fromSending) Get(ctx context.Context, name string) ([]byte, string, error) {
	sent := f.monotonic()
	raw, version, err := f.KV.Get(ctx, name)
	f.received(version, sent, 0)
	return raw, version, err
}

func (f *fromSending) Put(ctx context.Context, name string, raw []byte, version string) (string, error) {
	sent := f.monotonic()
	var state map[string]any
	extra := time.Duration(0)
	if version != "" {
		f.mu.Lock()
		extra = f.extra[version] + f.took[version]
		f.mu.Unlock()
		d := json.NewDecoder(bytes.NewReader(raw))
		d.UseNumber()
		if err := d.Decode(&state); err != nil {
			return "", err
		}
		now, err := state["now"].(json.Number).Int64()
		if err != nil {
			return "", err
		}
		state["now"] = now + extra.Microseconds()
		if raw, err = json.Marshal(state); err != nil {
			return "", err
		}
	}
	version, err := f.KV.Put(ctx, name, raw, version)
	if err == nil {
		f.received(version, sent, extra)
	}
	return version, err
}

// TestNoClockCatches: each mistake in the clock makes sections overlap in some of 1,000 histories. Time
// that counts from sending is wrong only if requests are late.
func TestNoClockCatches(t *testing.T) {
	for _, m := range wrongClocks {
		t.Run(m.name, func(t *testing.T) {
			n, caught := 0, 0
			for r := range worlds(t, &sim.Clockless{Clock: m.clock, LateRequests: m.late}, *clocklessSeed, max(*clockless, 1000)) {
				n++
				if slices.ContainsFunc(judge(r), func(s string) bool { return s[0] == 'o' }) {
					caught++
				}
				if caught == *enough {
					break
				}
			}
			if t.Logf("%d of %d histories have an overlap", caught, n); caught == 0 {
				t.Error("no history has an overlap")
			}
		})
	}
}
