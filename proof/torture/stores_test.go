//go:build nightly

package torture_test

import (
	"cmp"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/proof/fault"
	"github.com/dibs-go/dibs/proof/target"
	"github.com/dibs-go/dibs/proof/torture"
)

// `make torture` gives the flags of TestStores.
var (
	duration = flag.Duration("duration", 15*time.Second, "how `long` faults strike each store")
	s        = flag.String("store", "", "torture only this `store`")
	faults   = flag.String("faults", "", "let only these `faults` strike")
	seed     = flag.Uint64("seed", 0, "the `number` from which everything derives; 0 is a random one")
	page     = flag.String("page", "", "write the table between the marks in this `file`")
)

const (
	// plain are the faults under which a store forgets nothing, so that the check is stricter.
	plain = "worker,network"
	// A run with fewer faults has this part of the duration: with the plain faults, and with a
	// fault that must not meet another one. It has at least shortest.
	plainShare, aloneShare = 2, 5
	shortest               = 10 * time.Second
	// together is how many stores are tortured at a time.
	together = 2
)

// TestStores: every kind of store, on servers of its own, keeps its promises under every
// fault that applies.
func TestStores(t *testing.T) {
	for *seed == 0 {
		*seed = rand.Uint64() >> 16
	}
	kinds := target.Kinds()
	rows := make([][]row, len(kinds))
	t.Run("all", func(t *testing.T) {
		free := make(chan struct{}, together)
		for i, k := range kinds {
			if *s != "" && *s != k.Name {
				continue
			}
			t.Run(k.Name, func(t *testing.T) {
				t.Parallel()
				free <- struct{}{}
				defer func() { <-free }()
				rows[i] = tortureOne(t, k)
			})
		}
	})
	text := table(rows)
	t.Log("\n" + text)
	if *page != "" {
		publish(t, *page, fmt.Sprintf("%s, faults struck each store for %v.\n\n%s", time.Now().UTC().Format(time.DateOnly), *duration, text))
	}
}

// tortureOne tortures one kind of store: with all faults that can meet, with the plain ones if
// it has a server, and with each fault that must be alone.
func tortureOne(t *testing.T, k target.Kind) (rows []row) {
	on := k.New(t)
	runs := []row{{k.Name, cmp.Or(*faults, k.Faults), *duration, nil}}
	if *faults == "" && k.Faults == "" {
		if on.Server != nil {
			runs = append(runs, row{k.Name, plain, max(*duration/plainShare, shortest), nil})
		}
		for _, f := range fault.All() {
			if f.Alone && f.Applies(on, false) == nil {
				runs = append(runs, row{k.Name, f.Name, max(*duration/aloneShare, shortest), nil})
			}
		}
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("store", k.Name)
	for i, r := range runs {
		if i > 0 {
			on = k.New(t)
		}
		report, err := torture.Run(t.Context(), &torture.Options{
			URL: on.URL, Open: open, Shown: k.Name + ":", Target: on, Duration: r.duration, Faults: r.faults, Seed: *seed, Log: log,
		})
		if err != nil {
			t.Fatalf("%v; again with:\n%s", err, r.command())
		}
		r.report = report
		var text strings.Builder
		testkit.Check(t, report.WriteText(&text))
		t.Logf("%s %s\n%s", k.Name, r.faults, text.String())
		if !report.OK() {
			t.Errorf("%s; again, in proof, with:\n%s", strings.Join(report.Failures(), "; "), r.command())
		}
		rows = append(rows, r)
	}
	return rows
}
