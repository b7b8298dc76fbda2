//go:build unix

package command_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// addOne is a critical section that would lose updates. It notices a second process inside,
// and records the order.
const addOne = `mkdir inside || echo "$1" >> overlaps
n=$(cat count)
echo $((n + 1)) > count
echo "$1" >> order
echo "$DIBS_FENCE" >> fences
rmdir inside`

// section starts a run of addOne.
func (b *bench) section(t *testing.T, name string, flags ...string) *program {
	t.Helper()
	return b.start(t, append(append([]string{"run"}, flags...), "sum", "--", "sh", "-c", addOne, "sh", name)...)
}

// checkSum checks what n sections left behind.
func (b *bench) checkSum(t *testing.T, n int) {
	t.Helper()
	if count := number(t, b.read("count")); count != uint64(n) {
		t.Errorf("the sum is %d; want %d", count, n)
	}
	if two := b.lines("overlaps"); len(two) > 0 {
		t.Errorf("two were inside at once: %v", two)
	}
	var fences []uint64
	for _, line := range b.lines("fences") {
		fences = append(fences, number(t, line))
	}
	if len(fences) != n || !slices.IsSorted(fences) || len(slices.Compact(fences)) != n {
		t.Errorf("%d fences, which do not rise: %v", len(fences), fences)
	}
	if e := entry(t, b.inspector(t), "sum"); e.Condition != "" {
		t.Errorf("left behind: %+v", e)
	}
}

// TestRunFew: a few processes at once each add one to a number in a file. The sum is right,
// and no two are inside at once. The nightly tests start a hundred.
func TestRunFew(t *testing.T) {
	t.Parallel()
	checkRunMany(t, newBench(t), 6)
}

func checkRunMany(t *testing.T, b *bench, many int) {
	t.Helper()
	b.write(t, "count", "0")
	all := make([]*program, many)
	for i := range all {
		all[i] = b.section(t, strconv.Itoa(i))
	}
	for i, p := range all {
		if code := p.code(t); code != 0 {
			t.Fatalf("process %d exited with %d: %s", i, code, p.stderr.String())
		}
	}
	b.checkSum(t, many)
}

// TestRunPermits: as many processes are inside at once as there are permits. A run with
// another number waits.
func TestRunPermits(t *testing.T) {
	t.Parallel()
	everyStore(t, checkRunPermits)
}

func checkRunPermits(t *testing.T, b *bench) {
	t.Parallel()
	const permits = 3
	var all []*program
	for i := range 2 * permits {
		all = append(all, b.start(t, "run", "--permits=3", "k", "--", "sh", "-c", fmt.Sprintf("echo %d >> in; while ! test -e go; do sleep 0.01; done; echo >> out", i)))
	}
	s := b.inspector(t)
	testkit.Eventually(t, "holders and waiters", func() bool {
		e := entry(t, s, "k")
		return len(e.Runs) == permits && e.Waiters == permits && len(b.lines("in")) == permits
	})
	for _, c := range []struct{ flag, says string }{
		{"--skip", `the key "k" is busy`}, {"--wait=100ms", `the key "k" is still busy after 100ms`},
	} {
		if code, _, stderr := b.run(t, "run", "--permits=2", c.flag, "k", "--", "touch", "ran"); code != 75 || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: %d, %q", c.flag, code, stderr)
		}
	}
	// Runs with another number wait until all have released the key.
	waits := []*program{
		b.start(t, "run", "--permits=1", "k", "--", "sh", "-c", "echo ran >> others"),
		b.start(t, "run", "--permits=2", "--wait=1m", "k", "--", "sh", "-c", "echo ran >> others"),
	}
	if code, stdout, _ := b.run(t, "ls"); code != 0 || strings.Count(stdout, "\nk ") != permits {
		t.Errorf("ls: %d\n%s", code, stdout)
	}
	if n := len(b.lines("in")); n != permits {
		t.Errorf("%d are inside", n)
	}
	b.write(t, "go", "")
	for _, p := range append(all, waits...) {
		if code := p.code(t); code != 0 {
			t.Errorf("%d, %s", code, p.stderr.String())
		}
	}
	if n, others := len(b.lines("in")), len(b.lines("others")); n != 2*permits || others != 2 {
		t.Errorf("%d ran, and %d with another number", n, others)
	}
}
