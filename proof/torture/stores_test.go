//go:build nightly

package torture_test

import (
	"cmp"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
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
	lanes := 0 // the default
	if strings.HasPrefix(on.URL, "s3:") {
		lanes = 3 // each call is three requests to a server of files
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("store", k.Name)
	for i, r := range runs {
		if i > 0 {
			on = k.New(t)
		}
		report, err := torture.Run(t.Context(), &torture.Options{
			URL: on.URL, Open: open, Shown: k.Name + ":", Target: on, Duration: r.duration, Faults: r.faults, Seed: *seed, Lanes: lanes, Log: log,
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

// row is one run, of one kind of store.
type row struct {
	store    string
	faults   string // that were asked for
	duration time.Duration
	report   *torture.Report
}

// command is what repeats a run.
func (r row) command() string {
	c := fmt.Sprintf("go test -tags nightly -run '^TestStores$' ./torture -args -store %s -duration %v -seed %d", r.store, r.duration, *seed)
	if r.faults != "" {
		c += " -faults " + r.faults
	}
	return c
}

// table returns the results of all runs, in Markdown.
func table(rows [][]row) string {
	var b strings.Builder
	b.WriteString("| store | faults, and how often each had an effect | histories | operations | outcome unknown | writes refused by their fence | violations | seed |\n")
	b.WriteString("|---|---|---:|---:|---:|---:|---:|---:|\n")
	var sum struct{ faults, histories, operations, unknown, refused, violations int }
	for _, of := range rows {
		for _, r := range of {
			p := r.report
			sum.faults += p.Hits()
			sum.histories += p.Keys
			sum.operations += p.Operations
			sum.unknown += p.Unknown
			sum.refused += p.Refused
			sum.violations += len(p.Violations)
			verdict := "0"
			if !p.OK() {
				verdict = strings.Join(p.Failures(), "; ")
			}
			fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %d | %s | %d |\n", r.store, hits(p), p.Keys, p.Operations, p.Unknown, p.Refused, verdict, p.Seed)
		}
	}
	fmt.Fprintf(&b, "| **all** | %d | %d | %d | %d | %d | %d | |\n", sum.faults, sum.histories, sum.operations, sum.unknown, sum.refused, sum.violations)
	return b.String()
}

// hits lists how often each fault had an effect.
func hits(r *torture.Report) string {
	var all []string
	for _, s := range r.Faults {
		name := s.Name
		if s.Forgets {
			name += "\\*"
		}
		all = append(all, fmt.Sprintf("%s %d", name, s.Hits))
	}
	if r.Crashes > 0 {
		all = append(all, fmt.Sprintf("crash %d", r.Crashes))
	}
	if r.Freezes > 0 {
		all = append(all, fmt.Sprintf("freeze %d", r.Freezes))
	}
	return strings.Join(all, ", ")
}

// The marks between which the table is in the page.
const (
	begin = "<!-- make torture wrote what is between these marks. -->\n"
	end   = "<!-- The end of it. -->\n"
)

// publish puts the text between the marks of the page, even if a run failed.
func publish(t *testing.T, page, text string) {
	before := testkit.ReadFile(t, page)
	head, rest, ok := strings.Cut(string(before), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s needs the lines %q and %q", page, begin, end)
	}
	testkit.Must(t, os.WriteFile(page, []byte(head+begin+"\n"+text+"\n"+end+tail), 0o644))
}

// TestLostByFailover: what a failover loses is found, if the store was to lose nothing.
func TestLostByFailover(t *testing.T) {
	t.Parallel()
	on := target.PostgresLocal(t)
	on.Synchronous = true // which it is not
	findsLoss(t, on, "split")
}

// TestLostByPatroni: what Patroni loses without synchronous_mode is found.
func TestLostByPatroni(t *testing.T) {
	t.Parallel()
	findsLoss(t, target.PostgresPatroniHosts(t, true), "manager-stop")
}

func findsLoss(t *testing.T, on *fault.Target, faults string) {
	t.Helper()
	r, err := torture.Run(t.Context(), &torture.Options{URL: on.URL, Target: on, Duration: 10 * time.Second, Faults: faults, Seed: 1, Dir: t.TempDir()})
	testkit.Must(t, err)
	if r.OK() || len(r.Violations) == 0 {
		t.Errorf("nothing was found: %q", r.Failures())
	}
}

// TestStrikeEnds: a fault that ends the test, because its server cannot be started again, ends the run.
func TestStrikeEnds(t *testing.T) {
	t.Parallel()
	on := target.Redis(t, nil)
	on.Server = unstartable{on.Server}
	_, err := torture.Run(t.Context(), &torture.Options{URL: on.URL, Target: on, Duration: time.Hour, Faults: "server-kill", Dir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "server-kill") {
		t.Errorf("the run ended with %v", err)
	}
}

// unstartable is a server that cannot be started again.
type unstartable struct{ fault.Server }

func (unstartable) Restart() { runtime.Goexit() }
