package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/proof/fault"
	"github.com/dibs-go/dibs/proof/torture"
)

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
