package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

const benchmarks = "../../docs/reference/benchmarks.md"

// TestPageHasEachComparison: docs/reference/benchmarks.md has a row of each comparison, with its goal.
func TestPageHasEachComparison(t *testing.T) {
	page := string(testkit.ReadFile(t, benchmarks))
	for _, c := range comparisons {
		if n := strings.Count(page, "\n| "+c.name+" | "+c.goal+" | **"); n != 1 {
			t.Errorf("%s has %d rows of %q with the goal %s", benchmarks, n, c.name, c.goal)
		}
	}
	rows := 0
	for _, part := range strings.Split(page, tableHead)[1:] {
		table, _, _ := strings.Cut(part, "\n\n")
		rows += strings.Count(table, "\n") + 1
	}
	if rows != len(comparisons) {
		t.Errorf("%s has %d rows of figures; there are %d comparisons", benchmarks, rows, len(comparisons))
	}
}

// TestPageIsWritten: a run replaces the tables whose comparisons it measured, and the sentence above
// each. A table of which it measured a part stays.
func TestPageIsWritten(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	before := string(testkit.ReadFile(t, benchmarks))
	testkit.Must(t, os.WriteFile(page, []byte(before), 0o644))
	r := newReport(t.Output(), config{rounds: 3})
	for _, c := range comparisons {
		if c.group == "jobs" || c.group == "redis" {
			r.add(c, figure{value: []float64{2, 4, 3}, unit: "ms", detail: "measured now"})
		}
	}
	testkit.Must(t, r.write(page))
	after := string(testkit.ReadFile(t, page))
	var was, is []string // the lines that differ
	a, b := strings.Split(before, "\n"), strings.Split(after, "\n")
	if len(a) != len(b) {
		t.Fatalf("the page had %d lines and has %d", len(a), len(b))
	}
	for i := range a {
		if a[i] != b[i] {
			was, is = append(was, a[i]), append(is, b[i])
		}
	}
	if len(is) != 3 || is[0] != r.head || nameOf(is[1]) != nameOf(was[1]) || nameOf(is[2]) != nameOf(was[2]) ||
		!strings.HasSuffix(is[1], " | **3 ms** | 2 … 4 | measured now |") || !strings.Contains(was[1], "River") {
		t.Errorf("in the place of\n%s\nis\n%s", strings.Join(was, "\n"), strings.Join(is, "\n"))
	}
}
