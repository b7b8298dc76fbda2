package command_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/pace"
	"github.com/dibs-go/dibs/mysqlstore"
	"github.com/dibs-go/dibs/pgstore"
	"github.com/dibs-go/dibs/redisstore"
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
	diseased = regexp.MustCompile(`^without a lock  read ( +\d+){5}\n +wrote( +\d+){5}\n +10[1-4]: (1 update is|[2-4] updates are) lost, in [\d.]+m?s\n$`)
	cured    = regexp.MustCompile(`^(.{16})read   100  101  102  103  104
 +wrote  101  102  103  104  105
 +105: every update counts, in [\d.]+m?s(, \d+ attempts in vain)?\n$`)
)

// race runs a race and checks what it says.
func (b *bench) race(t *testing.T, args ...string) {
	t.Helper()
	pace.Retry(t, stoodStill, func() error {
		code, stdout, stderr := b.run(t, append([]string{"race"}, args...)...)
		scheme, _, _ := strings.Cut(b.store, ":")
		races := strings.SplitAfter(stdout, "\n\n")
		for i, text := range races {
			races[i] = strings.TrimRight(text, "\n") + "\n"
		}
		if code != 0 || stderr != "" || len(races) != len(ways[scheme])+2 || !diseased.MatchString(races[1]) {
			return fmt.Errorf("%s %v: %d, %q\n%s", scheme, args, code, stderr, stdout)
		}
		for i, way := range ways[scheme] {
			m := cured.FindStringSubmatch(races[i+2])
			if m == nil || strings.TrimSpace(m[1]) != way || (m[2] != "") != (way == "version column") {
				return fmt.Errorf("%s %v: %s\n%s", scheme, args, way, races[i+2])
			}
		}
		return nil
	})
}

// TestRace: updates are lost without a lock and none with one, on every store, and
// nothing is left behind.
func TestRace(t *testing.T) {
	everyStore(t, func(t *testing.T, b *bench) {
		t.Parallel()
		for _, args := range [][]string{nil, {"--processes"}, {"--processes", "--namespace=n"}} {
			b.race(t, args...)
		}
		b.nothingOfARace(t)
	})
	t.Run("memory", func(t *testing.T) {
		b := newBench(t)
		b.store = "memory:"
		b.race(t)
		if code, _, stderr := b.run(t, "race", "--processes"); code != 64 || !strings.Contains(stderr, "share no store in memory") {
			t.Errorf("processes in memory: %d, %q", code, stderr)
		}
		if code, _, _ := b.run(t, "race", "--store=sqlite:"+b.path("missing/dibs.db")); code != 69 {
			t.Errorf("without a folder: %d", code)
		}
	})
}

// TestRaceInterrupted: a race that is interrupted leaves nothing behind either.
func TestRaceInterrupted(t *testing.T) {
	everyStore(t, func(t *testing.T, b *bench) {
		// Before it goes on with dibs, and while somebody holds the key.
		for _, held := range []bool{false, true} {
			code := 0
			for n := 0; n < 10 && code == 0; n++ { // or it was over before the signal
				p := b.start(t, "race", "--processes")
				eventually(t, "the race", func() bool { return strings.Contains(p.stdout.String(), "lost") })
				s := b.inspector(t)
				eventually(t, "what to interrupt", func() bool {
					select {
					case <-p.done:
						return true
					default:
						return !held || holdsAny(t, s)
					}
				})
				_ = p.Process.Signal(syscall.SIGTERM)
				code = p.code(t)
				b.nothingOfARace(t)
			}
			if code != 128+int(syscall.SIGTERM) {
				t.Errorf("it ended with %d", code)
			}
		}
	})
}

// holdsAny reports whether somebody holds a key.
func holdsAny(t *testing.T, s dibs.Inspector) bool {
	t.Helper()
	for e, err := range s.List(t.Context(), dibs.Query{}) {
		must(t, err)
		if e.Condition == dibs.ConditionHeld {
			return true
		}
	}
	return false
}

// nothingOfARace: neither keys nor files, tables nor other things are left.
func (b *bench) nothingOfARace(t *testing.T) {
	t.Helper()
	s := b.inspector(t)
	for e, err := range s.List(t.Context(), dibs.Query{}) {
		t.Errorf("left behind: %+v, %v", e, err)
	}
	for _, dir := range []string{b.dir, os.TempDir()} {
		files, err := os.ReadDir(dir)
		must(t, err)
		for _, f := range files {
			if strings.HasPrefix(f.Name(), "dibs-race-") {
				t.Errorf("left behind: %s in %s", f.Name(), dir)
			}
		}
	}
	switch s := s.(type) {
	case *redisstore.Store:
		left, err := s.Client().Do(t.Context(), s.Client().B().Keys().Pattern("*").Build()).AsStrSlice()
		if err != nil || len(left) > 1 {
			t.Errorf("left behind, beside the fence: %q, %v", left, err)
		}
	case *mysqlstore.Store:
		if left := sharedMariaDB().Query("SHOW TABLES IN app LIKE 'dibs_race%'"); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	case *pgstore.Store:
		if left := sharedPostgres().Query("SELECT relname FROM pg_class WHERE relname LIKE 'dibs_race%'"); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

// TestRaceWithoutATable: a user who may not make a table races for a file.
func TestRaceWithoutATable(t *testing.T) {
	b := newPostgresBench(t)
	b.inspector(t)
	b.store = asStranger(t, b.store)
	code, stdout, stderr := b.run(t, "race")
	if code != 0 || stderr != "" || !strings.Contains(stdout, "The number is in a file, because the table for it could not be made: ") ||
		strings.Contains(stdout, "row lock") || !strings.Contains(stdout, "105: every update counts") {
		t.Errorf("%d, %q\n%s", code, stderr, stdout)
	}
	b.nothingOfARace(t)
}
