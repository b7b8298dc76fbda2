//go:build nightly

package mutant_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/proof/backend"
	"github.com/dibs-go/dibs/proof/mutant"
	"github.com/dibs-go/dibs/proof/torture"
)

// seed is what each run derives from, to do it again; 0 is a random one.
var seed = flag.Uint64("seed", 0, "the `seed` of each run")

func TestMain(m *testing.M) {
	torture.Child(open)
	flag.Parse()
	// Runs mostly wait, for time and for the file.
	if err := flag.Set("test.parallel", strconv.Itoa(max(5, runtime.GOMAXPROCS(0)))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// open opens a store that is broken as the name of its file's folder says.
func open(ctx context.Context, url string) (*torture.Store, error) {
	s, err := backend.Open(ctx, url)
	if err != nil {
		return nil, err
	}
	path, _, _ := strings.Cut(url, "?")
	if m, ok := mutant.Named(filepath.Base(filepath.Dir(path))); ok {
		s.Store = m.Wrap(s.Store)
	}
	return s, nil
}

// TestTortureCatches: the torture harness, whose workers are processes that share a file,
// catches each mutant.
func TestTortureCatches(t *testing.T) {
	for _, m := range mutant.All() {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			var seeds []uint64
			for n, run := range runs {
				r := tortured(t, m.Name, run.faults, run.duration)
				seeds = append(seeds, r.Seed)
				t.Logf("run %d, seed %d, %d events, failures %q", n+1, r.Seed, r.Events, r.Failures())
				for _, all := range [][]string{r.Violations, r.Stuck, r.Left} {
					if len(all) > 0 {
						t.Logf("caught in %d ways: %.200s", len(all), all[0])
						return
					}
				}
			}
			t.Errorf("it was not caught in runs of the seeds %d; to begin with the first one again:\ngo test -tags nightly -run '%s$' ./mutant -args -seed %d", seeds, t.Name(), seeds[0])
		})
	}
}

// runs are made one after the other until a mutant is caught: most are by the first.
var runs = []struct {
	faults   string
	duration time.Duration
}{
	{"kill,stop", 5 * time.Second},
	{"none", 5 * time.Second},
	{"kill,stop", 20 * time.Second},
	{"none", 20 * time.Second},
	{"kill,stop", time.Minute},
}

// TestTorturePasses: the store that is not broken is not caught.
func TestTorturePasses(t *testing.T) {
	t.Parallel()
	if r := tortured(t, "unbroken", "kill,stop", 5*time.Second); r.Broke() {
		t.Errorf("failures %q, violations %q, stuck %q, left %q\ngo test -tags nightly -run '^TestTorturePasses$' ./mutant -args -seed %d", r.Failures(), r.Violations, r.Stuck, r.Left, r.Seed)
	}
}

// tortured runs the harness on a file in a folder of that name.
func tortured(t *testing.T, name, faults string, d time.Duration) *torture.Report {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r, err := torture.Run(t.Context(), &torture.Options{
		URL: "sqlite:" + filepath.Join(dir, "dibs.db?shared=true"), Shown: "sqlite:dibs.db", Open: open, Seed: *seed,
		Duration: d, Faults: faults, Workers: 3, Lanes: 8, TTL: 500 * time.Millisecond, Dir: t.TempDir(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}
