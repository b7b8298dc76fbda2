package command_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dibs-go/dibs"
)

// ways are how each kind of store's race goes on after the one without a lock.
var ways = map[string][]string{
	"memory":   {"with dibs"},
	"redis":    {"with dibs"},
	"sqlite":   {"row lock", "version column", "with dibs"},
	"postgres": {"row lock", "version column", "advisory lock", "with dibs"},
	"mysql":    {"row lock", "version column", "advisory lock", "with dibs"},
}

var (
	diseased = regexp.MustCompile(`^without a lock  read ( +\d+){5}\n +wrote( +\d+){5}\n +10[1-5]: (every update counts|1 update is lost|[2-4] updates are lost), in [\d.]+m?s\n$`)
	cured    = regexp.MustCompile(`^(.{16})read   100  101  102  103  104
 +wrote  101  102  103  104  105
 +105: every update counts, in [\d.]+m?s(, \d+ attempts in vain)?\n$`)
)

// race runs a race, checks what it says, and returns whether updates were lost without a
// lock. That is the machine's decision; the program says so and ends with 1 if none was.
func (b *bench) race(t *testing.T, args ...string) (lost bool) {
	t.Helper()
	code, stdout, stderr := b.run(t, append([]string{"race"}, args...)...)
	scheme, _, _ := strings.Cut(b.store, ":")
	races := strings.SplitAfter(stdout, "\n\n")
	for i, text := range races {
		races[i] = strings.TrimRight(text, "\n") + "\n"
	}
	if len(races) != len(ways[scheme])+2 || !diseased.MatchString(races[1]) {
		t.Fatalf("%s %v: %d, %q\n%s", scheme, args, code, stderr, stdout)
	}
	lost = strings.Contains(races[1], "lost")
	if lost && (code != 0 || stderr != "") || !lost && (code != 1 || !strings.Contains(stderr, "nothing was lost without the key either")) {
		t.Errorf("%s %v: %d, %q\n%s", scheme, args, code, stderr, stdout)
	}
	for i, way := range ways[scheme] {
		m := cured.FindStringSubmatch(races[i+2])
		if m == nil || strings.TrimSpace(m[1]) != way || m[2] != "" && way != "version column" {
			t.Errorf("%s %v: %s\n%s", scheme, args, way, races[i+2])
		}
	}
	return lost
}

// TestRace: no update is lost with a lock, and nothing is left behind.
func TestRace(t *testing.T) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.race(t)
		b.race(t, "--processes", "--namespace=n")
		b.nothingOfARace(t)
	})
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.store = "memory:"
		b.env = append(b.env, "TMPDIR="+b.dir)
		b.race(t)
		if left, err := filepath.Glob(b.path("dibs-race-*")); err != nil || len(left) > 0 {
			t.Errorf("left behind: %q, %v", left, err)
		}
		if code, _, stderr := b.run(t, "race", "--processes"); code != 64 || !strings.Contains(stderr, "share no store in memory") {
			t.Errorf("processes in memory: %d, %q", code, stderr)
		}
		if code, _, _ := b.run(t, "race", "--store=sqlite:"+b.path("missing/dibs.db")); code != 69 {
			t.Errorf("without a folder: %d", code)
		}
	})
}

// nothingOfARace: neither keys nor files are left.
func (b *bench) nothingOfARace(t *testing.T) {
	t.Helper()
	for e, err := range b.inspector(t).List(t.Context(), dibs.Query{}) {
		t.Errorf("left behind: %+v, %v", e, err)
	}
	files, err := os.ReadDir(b.dir)
	must(t, err)
	for _, f := range files {
		if strings.HasPrefix(f.Name(), "dibs-race-") {
			t.Errorf("left behind: %s", f.Name())
		}
	}
}
