//go:build unix

package command_test

import (
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// raced is what a race writes; its first group is the updates that are lost without a lock.
var raced = regexp.MustCompile(`^5 processes each read a number, think, add one and write it back\.
It is 100, and should become 105\.

without a lock  read ( +\d+){5}
 +wrote( +\d+){5}
 +10[1-5]: (every update counts|1 update is lost|[2-4] updates are lost), in [\d.]+m?s

with dibs       read   100  101  102  103  104
 +wrote  101  102  103  104  105
 +105: every update counts, in [\d.]+m?s
$`)

// race runs a race, checks what it says, and returns whether updates were lost without a
// lock. That depends on the machine: the program exits with 1 if none was lost.
func (b *bench) race(t *testing.T, args ...string) (lost bool) {
	t.Helper()
	code, stdout, stderr := b.run(t, append([]string{"race"}, args...)...)
	if !raced.MatchString(stdout) {
		t.Fatalf("%v: %d, %q\n%s", args, code, stderr, stdout)
	}
	lost = strings.Contains(stdout, "lost")
	if lost && (code != 0 || stderr != "") || !lost && (code != 1 || !strings.Contains(stderr, "no update was lost without a lock either")) {
		t.Errorf("%v: %d, %q\n%s", args, code, stderr, stdout)
	}
	return lost
}

// TestRace: with the lock no update is lost, and nothing is left behind.
func TestRace(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.env = append(b.env, "TMPDIR="+b.dir)
	b.race(t)
	b.race(t, "--namespace=n")
	b.noneOfARace(t)
	b.store = "memory:"
	if code, _, stderr := b.run(t, "race"); code != 64 || !strings.Contains(stderr, "cannot share a store in memory") {
		t.Errorf("in memory: %d, %q", code, stderr)
	}
	b.store = "sqlite:" + b.path("missing/dibs.db")
	if code, _, _ := b.run(t, "race"); code != 69 {
		t.Errorf("without a folder: %d", code)
	}
}

// TestRaceTerminated: a race that a signal ends leaves nothing behind.
func TestRaceTerminated(t *testing.T) {
	everyStore(t, func(t *testing.T, b *bench) {
		b.env = append(b.env, "TMPDIR="+b.dir)
		p := b.start(t, "race")
		testkit.Eventually(t, "the race", func() bool { return strings.Contains(p.stdout.String(), "lost") })
		_ = p.Process.Signal(syscall.SIGTERM)
		if code := p.code(t); code != 128+int(syscall.SIGTERM) && code != 0 { // if it was over
			t.Errorf("it exited with %d", code)
		}
		b.noneOfARace(t)
	})
}

// noneOfARace: no key and no file is left.
func (b *bench) noneOfARace(t *testing.T) {
	t.Helper()
	for e, err := range b.inspector(t).List(t.Context(), store.Query{}) {
		t.Errorf("left behind: %+v, %v", e, err)
	}
	files, err := os.ReadDir(b.dir)
	testkit.Must(t, err)
	for _, f := range files {
		if strings.HasPrefix(f.Name(), "dibs-race-") {
			t.Errorf("left behind: %s", f.Name())
		}
	}
}
