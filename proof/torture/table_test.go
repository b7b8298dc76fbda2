//go:build nightly

package torture_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/proof/torture"
)

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
