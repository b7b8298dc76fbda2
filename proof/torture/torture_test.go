package torture_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/proof/torture"
	"github.com/dibs-go/dibs/proof/victim"
)

// groups are faults that strike together, and for how long.
var groups = []struct {
	name, faults string
	duration     time.Duration
	only         []string // victims; nil for all
}{
	{name: "workers and network", faults: "worker,network", duration: 20 * time.Second, only: single},
	{name: "all", faults: "", duration: 20 * time.Second},
	{name: "clock", faults: "server-clock", duration: 10 * time.Second, only: single},
}

// single are victims with one server, one of each kind.
var single = []string{"redis", "postgres", "mariadb"}

// TestTorture: every store keeps what it promises while every fault that applies to it
// strikes, with those of its kind and with all others.
func TestTorture(t *testing.T) {
	for _, v := range victim.All() {
		t.Run(v.Name, func(t *testing.T) {
			t.Parallel()
			for _, g := range groups {
				if g.only != nil && !slices.Contains(g.only, v.Name) {
					continue
				}
				t.Run(g.name, func(t *testing.T) {
					t.Parallel()
					target := v.New(t)
					r, err := torture.Run(t.Context(), &torture.Options{
						URL: target.URL, Shown: v.Name + ":", Open: open, Target: target, Duration: g.duration, Faults: g.faults, Lanes: 5,
					})
					if err != nil {
						t.Fatal(err)
					}
					var text bytes.Buffer
					if err := r.WriteText(&text); err != nil {
						t.Fatal(err)
					}
					t.Log(text.String())
					if !r.OK() {
						t.Errorf("it failed: %q", r.Failures())
					}
					if r.Grants == 0 || r.Replays == 0 || r.Writes == 0 || r.Swept == 0 || len(r.Faults) == 0 {
						t.Errorf("it has not done much: %+v", r)
					}
				})
			}
		})
	}
}

// clung is how long a store that does not let go holds on.
const clung = time.Minute

// TestBroken: what is wrong is found, and shown.
func TestBroken(t *testing.T) {
	for _, test := range []struct {
		broken string
		want   func(*torture.Report) []string
		text   string
	}{
		{"exclusion", func(r *torture.Report) []string { return r.Violations }, "lease, key mutex/"},
		{"goroutine", func(r *torture.Report) []string { return r.Left }, "main_test.go"},
		{"close", func(r *torture.Report) []string { return r.Left }, "dibs.db-wal"},
		{"release", func(r *torture.Report) []string { return append(r.Stuck[:1:1], r.Left...) }, "is held"},
	} {
		t.Run(test.broken, func(t *testing.T) {
			t.Parallel()
			dir, folder := t.TempDir(), filepath.Join(t.TempDir(), broken+test.broken)
			if err := os.Mkdir(folder, 0o700); err != nil {
				t.Fatal(err)
			}
			r, err := torture.Run(t.Context(), &torture.Options{
				URL: "sqlite:" + filepath.Join(folder, "dibs.db"), Open: open, Duration: 2 * time.Second, Faults: "none", Dir: dir, Seed: 1,
			})
			if err != nil {
				t.Fatal(err)
			}
			if all := strings.Join(test.want(r), "\n"); r.OK() || !r.Broke() || !strings.Contains(all, test.text) {
				t.Errorf("%q is not in %q; failures %q, troubles %q", test.text, all, r.Failures(), r.Broken)
			}
			shown(t, r)
			if files, err := filepath.Glob(filepath.Join(dir, "worker-*.jsonl")); err != nil || len(files) != r.Lives {
				t.Errorf("there are the histories %q of %d lives, %v", files, r.Lives, err)
			}
		})
	}
}

// shown: a report of a failure says so in each of its forms.
func shown(t *testing.T, r *torture.Report) {
	t.Helper()
	var text, page, object bytes.Buffer
	if err := errors.Join(r.WriteText(&text), r.WriteHTML(&page), r.WriteJSON(&object)); err != nil {
		t.Fatal(err)
	}
	if s := text.String(); !strings.Contains(s, "FAILED: ") || !strings.Contains(s, "--seed 1 ") || strings.Contains(s, "0 violations") {
		t.Errorf("the text does not say it: %s", s)
	} else if len(r.Violations) > 0 && !strings.Contains(s, " claim ") {
		t.Errorf("the text does not show what happened: %s", s)
	}
	if s := page.String(); !strings.Contains(s, "Failed:") || strings.Contains(s, "<iframe") != (len(r.Violations) > 0) {
		t.Errorf("the page does not show it: %.2000s", s)
	}
	var fields struct {
		Seed       uint64
		Violations []string
	}
	if err := json.Unmarshal(object.Bytes(), &fields); err != nil || fields.Seed != 1 || len(fields.Violations) != len(r.Violations) {
		t.Errorf("the object is %+v, %v", fields, err)
	}
}

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
		{&torture.Options{URL: url}, "Options.Open"},
		{&torture.Options{URL: url, Open: open, Duration: time.Millisecond}, "Options.Duration"},
		{&torture.Options{URL: url, Open: open, Workers: 65}, "Options.Workers"},
		{&torture.Options{URL: url, Open: open, Workers: -1}, "Options.Workers"},
		{&torture.Options{URL: url, Open: open, Lanes: -1}, "Options.Lanes"},
		{&torture.Options{URL: url, Open: open, TTL: time.Millisecond}, "Options.TTL"},
		{&torture.Options{URL: url, Open: open, Events: 1}, "Options.Events"},
		{&torture.Options{URL: url, Open: open, Faults: "nonsense"}, "nonsense"},
	} {
		if _, err := torture.Run(t.Context(), test.o); !errors.Is(err, torture.ErrOptions) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q is not in %v", test.want, err)
		}
	}
	if _, err := torture.Run(t.Context(), &torture.Options{URL: "sqlite:" + filepath.Join(dir, "missing", "dibs.db"), Open: open}); err == nil {
		t.Error("a store was opened in a folder that is not there")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestAskedFor: a run in which a fault that was asked for by its name does not apply
// does not count as passed, and one without any fault says so.
func TestAskedFor(t *testing.T) {
	for _, test := range []struct {
		faults string
		want   string
	}{
		{"none", ""},
		{"flushall", "the fault flushall, which was asked for, does not apply"},
		{"data", ""},
	} {
		dir := t.TempDir()
		t.Setenv("TMPDIR", dir)
		r, err := torture.Run(t.Context(), &torture.Options{
			URL: "sqlite:" + filepath.Join(t.TempDir(), "dibs.db?shared=true"), Shown: "sqlite:dibs.db", Open: open, Duration: time.Second, Faults: test.faults, Workers: 2,
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(r.Failures(), "; "); got != test.want || r.OK() != (test.want == "") || r.Broke() {
			t.Errorf("%s: failures %q, want %q", test.faults, got, test.want)
		}
		if left, err := os.ReadDir(dir); err != nil || (len(left) > 0) != (test.want != "") {
			t.Errorf("%s: the histories are kept for those who failed, and only for them: %v, %v", test.faults, left, err)
		}
		if r.Effects == 0 {
			t.Errorf("%s: nothing was done in a transaction", test.faults)
		}
	}
}

// TestInterruptedReport: a run that was interrupted is no failure because of what it did
// not come to, and does not look as if it had.
func TestInterruptedReport(t *testing.T) {
	r := &torture.Report{Interrupted: true, Faults: []*torture.Strikes{{Name: "kill", Bites: 2}, {Name: "stop"}}}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil || !r.OK() || !strings.Contains(text.String(), "\nInterrupted, so far 0 violations, with 2 faults of 1 kinds that bit.\n") {
		t.Errorf("%v %q %s", err, r.Failures(), text.String())
	}
	if r.Violations = []string{"one"}; r.OK() {
		t.Error("a violation before it is none")
	}
}
