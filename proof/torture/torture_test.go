package torture_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/proof/torture"
)

// TestOptions: what cannot be run is refused with the name of the field, and nothing is
// left behind.
func TestOptions(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	url := "sqlite:" + filepath.Join(t.TempDir(), "dibs.db")
	for _, test := range []struct {
		o    *torture.Options
		want string
	}{
		{nil, "Options.URL"},
		{&torture.Options{URL: url, Duration: time.Millisecond}, "Options.Duration"},
		{&torture.Options{URL: url, Workers: 65}, "Options.Workers"},
		{&torture.Options{URL: url, Workers: -1}, "Options.Workers"},
		{&torture.Options{URL: url, Lanes: -1}, "Options.Lanes"},
		{&torture.Options{URL: url, TTL: time.Millisecond}, "Options.TTL"},
		{&torture.Options{URL: url, Events: 1}, "Options.Events"},
		{&torture.Options{URL: url, Faults: "nonsense"}, "nonsense"},
	} {
		if _, err := torture.Run(t.Context(), test.o); !errors.Is(err, torture.ErrOptions) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q is not in %v", test.want, err)
		}
	}
	if _, err := torture.Run(t.Context(), &torture.Options{URL: "sqlite:" + filepath.Join(dir, "missing", "dibs.db")}); err == nil {
		t.Error("a store was opened in a folder that is not there")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestTheResultIsFirst: a report begins with its result. Then come what is wrong, what was done, and on one
// line for each reason the faults that do not apply.
func TestTheResultIsFirst(t *testing.T) {
	r := &torture.Report{
		Seed: 7, Repeat: "dibs-prove torture --seed 7", Faults: []*torture.Strikes{{Name: "kill", Hits: 2}},
		Absent: []torture.Absent{{Name: "a", Why: "it is not a server"}, {Name: "b", Why: "it needs root"}, {Name: "c", Why: "it is not a server"}},
	}
	for violations, parts := range map[int][]string{
		0: {"0 violations, with 2 hits", "seed 7; again", "FAULT", "effects in transactions", "These faults do not apply:\n  a, c: it is not a server\n  b: it needs root\n"},
		2: {"FAILED: ", "seed 7; again", "violation: two holders", "violation: two holders", "FAULT", "These faults do not apply:\n"},
	} {
		r.Violations = slices.Repeat([]string{"two holders"}, violations)
		var text strings.Builder
		testkit.Must(t, r.WriteText(&text))
		rest := text.String()
		if !strings.HasPrefix(rest, parts[0]) {
			t.Errorf("%d violations: it begins with %.80q", violations, rest)
		}
		for _, part := range parts {
			_, after, ok := strings.Cut(rest, part)
			if !ok {
				t.Fatalf("%d violations: %q is not in its place in\n%s", violations, part, text.String())
			}
			rest = after
		}
	}
}

// TestInterruptedReport: a run that was interrupted is not a failure because of what it did
// not come to, and does not look as if it had.
func TestInterruptedReport(t *testing.T) {
	r := &torture.Report{Interrupted: true, Faults: []*torture.Strikes{{Name: "kill", Hits: 2}, {Name: "stop"}}}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil || !r.OK() || !strings.HasPrefix(text.String(), "Interrupted; so far 0 violations, with 2 hits by 1 kinds of faults.\n") {
		t.Errorf("%v %q %s", err, r.Failures(), text.String())
	}
	if r.Violations = []string{"one"}; r.OK() {
		t.Error("a violation before it is none")
	}
}
