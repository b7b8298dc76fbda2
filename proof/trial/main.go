// Command trial runs the torture over locks that people use, and over dibs, and writes
// docs/reference/trial.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

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
