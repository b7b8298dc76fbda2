package command_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/redisstore"
)

// TestRace: updates are lost without the key and none with it, on every store,
// and nothing is left behind.
func TestRace(t *testing.T) {
	lost := regexp.MustCompile(`(?m)^without a lock  read ( +\d+){5}\n +wrote( +\d+){5}\n +10[1-4]: (1 update is|[2-4] updates are) lost$`)
	const kept = `
with dibs       read   100  101  102  103  104
                wrote  101  102  103  104  105
                105: every update counts
`
	b := newBench(t)
	for _, args := range []string{"race", "race --store memory:", "race --processes", "race --processes --namespace n"} {
		code, stdout, stderr := b.run(t, strings.Fields(args)...)
		if code != 0 || stderr != "" || !lost.MatchString(stdout) || !strings.HasSuffix(stdout, kept) {
			t.Errorf("%s: %d, %q\n%s", args, code, stderr, stdout)
		}
	}
	for e, err := range b.inspector(t).List(t.Context(), dibs.Query{}) {
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
	r := newRedisBench(t)
	for _, args := range [][]string{{"race"}, {"race", "--processes"}} {
		code, stdout, stderr := r.run(t, args...)
		if code != 0 || stderr != "" || !lost.MatchString(stdout) || !strings.HasSuffix(stdout, kept) {
			t.Errorf("%s: %d, %q\n%s", args, code, stderr, stdout)
		}
	}
	cells := r.inspector(t).(*redisstore.Store).Client()
	if left, err := cells.Do(t.Context(), cells.B().Keys().Pattern("*").Build()).AsStrSlice(); err != nil || len(left) != 1 {
		t.Errorf("left behind, beside the fence: %q, %v", left, err)
	}
	if code, _, stderr := b.run(t, "race", "--processes", "--store=memory:"); code != 64 || !strings.Contains(stderr, "share no store in memory") {
		t.Errorf("processes in memory: %d, %q", code, stderr)
	}
	if code, _, _ := b.run(t, "race", "--store=sqlite:"+b.path("missing/dibs.db")); code != 69 {
		t.Errorf("without a folder: %d", code)
	}
}
