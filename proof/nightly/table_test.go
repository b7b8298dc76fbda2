//go:build unix

package main

import (
	"strings"
	"testing"

	"github.com/dibs-go/dibs/proof/torture"
)

// TestTable: what came of a run is in its row, and a run that did not pass says so.
func TestTable(t *testing.T) {
	good := &torture.Report{
		Keys: 7, Operations: 1000, Unknown: 30, Refused: 2, Seed: 99, Crashes: 1,
		Faults: []*torture.Strikes{{Name: "kill", Strikes: 3, Bites: 3}, {Name: "flushall", Strikes: 1, Bites: 1, Forgets: true}},
	}
	bad := &torture.Report{Keys: 1, Operations: 10, Seed: 5, Violations: []string{"x"}, Faults: []*torture.Strikes{{Name: "stop"}}}
	got := table([][]row{{{"redis", good}}, {{"sqlite", bad}}})
	for _, want := range []string{
		"| redis | kill 3, flushall\\* 1, crash 1 | 7 | 1000 | 30 | 2 | 0 | 99 |\n",
		"| sqlite | stop 0 | 1 | 10 | 0 | 0 | violations: 1; the fault stop never bit | 5 |\n",
		"| **all** | 5 | 8 | 1010 | 30 | 2 | 1 | |\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	if failed([][]row{{{"redis", good}}}) || !failed([][]row{{{"redis", good}}, {{"sqlite", bad}}}) {
		t.Error("who has failed is mistaken")
	}
}

// TestBetween: the table takes the place of the one before, and of nothing else.
func TestBetween(t *testing.T) {
	page := "# A page\n" + begin + "old\n" + end + "more\n"
	got, err := between(page, "new\n")
	if want := "# A page\n" + begin + "\nnew\n\n" + end + "more\n"; got != want || err != nil {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	for _, bare := range []string{"", begin, end, end + begin} {
		if _, err := between(bare, "new"); err == nil {
			t.Errorf("%q has a place for a table", bare)
		}
	}
}
