// Command trial runs the torture over locks that people use, and over dibs, and writes
// docs/reference/trial.md.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/proof/fault"
	"github.com/dibs-go/dibs/proof/torture"
)

func main() {
	torture.Child(openLock) // does not return in a worker process
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "trial:", err)
		os.Exit(1)
	}
}

// defaultDuration is how long faults strike in a run.
const defaultDuration = 12 * time.Second

// run runs what the flags say.
func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("trial", flag.ExitOnError)
	only := flags.String("only", "", "the `NAMES` of contenders, with commas (default all)")
	faults := flags.String("faults", "", "the `GROUPS` of faults, with commas: "+groupNames()+" (default all that apply)")
	seed := flags.Uint64("seed", 0, "the `NUMBER` from which everything derives (default a random one)")
	duration := flags.Duration("duration", defaultDuration, "how long faults strike")
	page := flags.String("page", "", "write the results to this `FILE`")
	tables := flags.Bool("tables", false, "only write the page, from the results so far")
	dir := flags.String("dir", "", "keep the histories in this `FOLDER`")
	results := flags.String("results", "results.json", "the `FILE` of all results so far")
	if err := flags.Parse(args); err != nil {
		return err
	}
	for *seed == 0 {
		*seed = rand.Uint64() >> 48 // short enough to be typed
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	chosen, err := choose(*only)
	if err != nil {
		return err
	}
	all, err := readResults(*results)
	if err != nil {
		return err
	}
	strike, err := chooseGroups(*faults)
	if err != nil {
		return err
	}
	if *tables {
		return all.sorted().write(*results, *page)
	}
	for _, c := range chosen {
		for _, g := range strike {
			r, err := try(ctx, c, g, *duration, *seed, *dir, log)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", c.name, g.name, err)
			}
			if r == nil {
				continue
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			fmt.Println(r.line(c))
			if all = all.with(*r); *page != "" {
				if err := all.write(*results, *page); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func groupNames() string {
	var names []string
	for _, g := range groups {
		names = append(names, g.name)
	}
	return strings.Join(names, ", ")
}

// chooseGroups returns the groups of faults of those names, with commas between them.
func chooseGroups(names string) ([]group, error) {
	if names == "" {
		return groups, nil
	}
	var chosen []group
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(groups, func(g group) bool { return g.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no group of faults %q; see the flag -faults", name)
		}
		chosen = append(chosen, groups[i])
	}
	return chosen, nil
}

// choose returns the contenders of those names, with commas between them.
func choose(names string) (chosen []*contender, err error) {
	if names == "" {
		for _, c := range contenders() {
			chosen = append(chosen, &c)
		}
		return chosen, nil
	}
	for name := range strings.SplitSeq(names, ",") {
		c, err := find(name)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, c)
	}
	return chosen, nil
}

const (
	// lease is for how long a dead holder keeps a lock, where a lock has such a time. It is the
	// shortest one that an etcd grants.
	lease = 2 * time.Second
	// workers use a lock in lanes each.
	workers, lanes = 4, 6
)

// result is what one run has shown.
type result struct {
	Contender string   `json:"contender"`
	Group     string   `json:"group"` // of faults
	Date      string   `json:"date"`
	Seconds   int      `json:"seconds"`
	Seed      uint64   `json:"seed"`
	Hits      []string `json:"hits"` // "kill 7"
	Sections  int      `json:"sections"`
	Overlaps  int      `json:"overlaps"`
	After     []string `json:"after,omitempty"` // what struck before overlaps, and before how many
	Late      int      `json:"late"`
	Refused   int      `json:"refused"` // writes, by their fence
	Fenced    bool     `json:"fenced"`
	Stuck     []string `json:"stuck,omitempty"`
	Overtaken int      `json:"overtaken"`
}

// inWorker names the contender to the worker processes.
const inWorker = "DIBS_TRIAL_CONTENDER"

// openLock opens the contender that the environment names, for a worker.
func openLock(ctx context.Context, url string) (*torture.Store, error) {
	c, err := find(os.Getenv(inWorker))
	if err != nil {
		return nil, err
	}
	l, end, err := c.open(ctx, url, lease)
	if err != nil {
		return nil, err
	}
	return &torture.Store{Locker: l, Close: end}, nil
}

// find returns the contender of that name.
func find(name string) (*contender, error) {
	var names []string
	for _, c := range contenders() {
		if c.name == name {
			return &c, nil
		}
		names = append(names, c.name)
	}
	return nil, fmt.Errorf("there is no contender %q; there are %s", name, strings.Join(names, ", "))
}

// try runs one contender under one group of faults. It returns nil if none of them applies.
func try(ctx context.Context, c *contender, g group, duration time.Duration, seed uint64, dir string, log *slog.Logger) (*result, error) {
	scope := servertest.NewScope()
	defer scope.Close()
	on := c.start(scope)
	if some, err := applies(on, g); err != nil || !some || c.calm && g.faults != "none" {
		return nil, err
	}
	if err := os.Setenv(inWorker, c.name); err != nil {
		return nil, err
	}
	if dir != "" {
		dir = filepath.Join(dir, c.name+"-"+g.name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	r, err := torture.Run(ctx, &torture.Options{
		URL: on.URL, Open: openLock, Target: on, Duration: duration, Faults: g.faults, Seed: seed, Dir: dir,
		Workers: workers, Lanes: lanes, TTL: lease, Log: log.With("contender", c.name, "faults", g.name),
	})
	if err != nil {
		return nil, err
	}
	if len(r.Broken) > 0 {
		log.Warn("the harness", "says", strings.Join(r.Broken, "; "))
	}
	for _, v := range r.Violations {
		log.Debug("found", "violation", v)
	}
	return resultOf(c, g, duration, r), nil
}

// applies reports whether a fault of the group can strike the target, once it has workers.
func applies(on *fault.Target, g group) (bool, error) {
	if g.faults == "none" {
		return true, nil
	}
	on.Workers = nobody{}
	on.Wires, _, _ = fault.Through(on.URL, 1) // an error means that the network cannot be struck
	some, _, err := fault.Select(on, g.faults)
	for _, w := range on.Wires {
		err = errors.Join(err, w.Close())
	}
	on.Workers, on.Wires = nil, nil
	return len(some) > 0, err
}

// resultOf is what the report shows.
func resultOf(c *contender, g group, duration time.Duration, r *torture.Report) *result {
	l := r.Locks
	out := &result{
		Contender: c.name, Group: g.name, Date: time.Now().UTC().Format(time.DateOnly), Seconds: int(duration.Seconds()), Seed: r.Seed,
		Sections: l.Sections, Late: l.Late, Refused: r.Refused, Fenced: r.Writes > 0, Stuck: r.Stuck, Overtaken: l.Overtaken,
	}
	for _, f := range r.Faults {
		out.Hits = append(out.Hits, fmt.Sprint(f.Name, " ", f.Hits))
	}
	for name, n := range map[string]int{"crash": r.Crashes, "freeze": r.Freezes} {
		if n > 0 {
			out.Hits = append(out.Hits, fmt.Sprint(name, " ", n))
		}
	}
	slices.Sort(out.Hits)
	after := map[string]int{}
	for _, o := range l.Overlaps {
		if slices.Equal(o.Faults, []string{"stall"}) {
			continue // the machine made it, and no fault
		}
		out.Overlaps++
		if len(o.Faults) == 0 {
			after["no fault"]++
		}
		for _, name := range o.Faults {
			if name != "stall" {
				after[name]++
			}
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(after), func(a, b string) int { return cmp.Or(after[b]-after[a], cmp.Compare(a, b)) }) {
		out.After = append(out.After, fmt.Sprint(name, " ", after[name]))
	}
	return out
}

// nobody stands for the workers that the torture will have, so that their faults apply.
type nobody struct{ fault.Workers }

func (nobody) Len() int { return workers }
