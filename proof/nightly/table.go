//go:build unix

package main

import (
	"fmt"
	"strings"
	"time"

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
func command(store, faults string, duration time.Duration, seed uint64) string {
	c := fmt.Sprintf("go run ./nightly -only %s -duration %v -seed %d", store, duration, seed)
	if faults != "" {
		c += " -faults " + faults
	}
	return c
}

// table returns what came of all runs, in Markdown.
func table(rows [][]row) string {
	var b strings.Builder
	b.WriteString("| store | faults, and how often each bit | histories | operations | outcome unknown | writes refused by their fence | violations | seed |\n")
	b.WriteString("|---|---|---:|---:|---:|---:|---:|---:|\n")
	var sum struct{ faults, histories, operations, unknown, refused, violations int }
	for _, of := range rows {
		for _, r := range of {
			p := r.report
			sum.faults += p.Bites()
			sum.histories += p.Keys
			sum.operations += p.Operations
			sum.unknown += p.Unknown
			sum.refused += p.Refused
			sum.violations += len(p.Violations)
			fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %d | %s | %d |\n",
				r.store, bites(p), p.Keys, p.Operations, p.Unknown, p.Refused, verdict(p), p.Seed)
		}
	}
	fmt.Fprintf(&b, "| **all** | %d | %d | %d | %d | %d | %d | |\n",
		sum.faults, sum.histories, sum.operations, sum.unknown, sum.refused, sum.violations)
	return b.String()
}

// bites says how often each fault bit.
func bites(r *torture.Report) string {
	var all []string
	for _, s := range r.Faults {
		name := s.Name
		if s.Forgets {
			name += "\\*"
		}
		all = append(all, fmt.Sprintf("%s %d", name, s.Bites))
	}
	if r.Crashes > 0 {
		all = append(all, fmt.Sprintf("crash %d", r.Crashes))
	}
	if r.Freezes > 0 {
		all = append(all, fmt.Sprintf("freeze %d", r.Freezes))
	}
	return strings.Join(all, ", ")
}

// verdict is 0 violations, or why the run did not pass.
func verdict(r *torture.Report) string {
	if r.OK() {
		return "0"
	}
	return strings.Join(r.Failures(), "; ")
}
