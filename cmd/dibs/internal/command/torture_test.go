package command_test

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestTortureEnds: how a torture ends that is not as it should be.
func TestTortureEnds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"in memory", []string{"--store=memory:"}, 64, "share no store in memory"},
		{"a fault that is none", []string{"--faults=nonsense"}, 64, "faults: there is no fault \"nonsense\""},
		{"no worker", []string{"--workers=-1"}, 64, "workers: it is -1"},
		{"a short lease", []string{"--lease=10ms"}, 64, "lease: it is 10ms; it must be 1s to 1m"},
		{"a long lease", []string{"--lease=2m"}, 64, "lease: it is 2m0s; it must be 1s to 1m"},
		{"no worker at all", []string{"--workers=0"}, 64, "workers: it is 0"},
		{"little time", []string{"--duration=1ms"}, 64, "duration: it is 1ms"},
		{"no time", []string{"--duration=0"}, 64, "duration: it is 0s"},
		{"no folder", []string{"--store=sqlite:missing/dibs.db"}, 69, "missing"},
		{"no page", []string{"--html=missing/page.html"}, 1, "missing/page.html"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			dir := t.TempDir()
			b.env = append(b.env, "TMPDIR="+dir)
			code, stdout, stderr := b.run(t, append([]string{"torture"}, test.args...)...)
			if code != test.code || !strings.Contains(stdout+stderr, test.want) {
				t.Errorf("it ended with %d, and %q is not in %s%s", code, test.want, stdout, stderr)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// TestTortureHelp: every fault is named.
func TestTortureHelp(t *testing.T) {
	b := newBench(t)
	_, _, stderr := b.run(t, "torture", "--faults=nonsense")
	_, list, _ := strings.Cut(stderr, "there are ")
	list, _, ok := strings.Cut(list, ", the kinds ")
	if !ok {
		t.Fatalf("no fault is named in %s", stderr)
	}
	code, stdout, _ := b.run(t, "torture", "--help")
	words := strings.FieldsFunc(stdout, func(c rune) bool { return c == ',' || c == '\n' || c == ' ' })
	for name := range strings.SplitSeq(list, ", ") {
		if code != 0 || !slices.Contains(words, name) {
			t.Errorf("%d, and %s is not named", code, name)
		}
	}
}
