package command_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/pace"
)

// crowd is how many processes come at once, or one after the other before the first of
// them is let in.
const crowd = 100

// addOne is a critical section that would lose updates, notices when it is not
// alone, and writes down who it was.
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

// most returns how many processes are let loose at most. On a database server each has
// connections of its own, and who waits on MySQL asks again and again: two hundred
// take half a minute there, and a minute and more.
func (b *bench) most(n int) int {
	switch {
	case strings.HasPrefix(b.store, "mysql:"):
		return n / 4
	case strings.HasPrefix(b.store, "postgres:"):
		return n / 2
	}
	return n
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

// TestRunCrowd: hundreds of processes that come at once each add one to a number
// in a file; the sum is right, and no two are inside at once.
func TestRunCrowd(t *testing.T) { everyStore(t, checkRunCrowd) }

func checkRunCrowd(t *testing.T, b *bench) {
	b.write(t, "count", "0")
	crowd := b.most(crowd)
	all := make([]*program, crowd)
	start := time.Now()
	for i := range all {
		all[i] = b.section(t, strconv.Itoa(i))
	}
	for i, p := range all {
		if code := p.code(t); code != 0 {
			t.Fatalf("process %d ended with %d: %s", i, code, p.stderr.String())
		}
	}
	t.Logf("%d processes in %v", crowd, time.Since(start))
	b.checkSum(t, crowd)
}

// stoodStill is from how long a standstill of the machine on leases of a second or two
// may run out, and turns and places of about one, that are not meant to.
const stoodStill = 250 * time.Millisecond

// TestRunOrder: processes that come one after the other enter in that order.
func TestRunOrder(t *testing.T) { everyStore(t, checkRunOrder) }

func checkRunOrder(t *testing.T, b *bench) {
	inLine := crowd
	if !strings.HasPrefix(b.store, "sqlite:") {
		inLine /= 2
	}
	pace.Retry(t, stoodStill, func() error {
		order := runInLine(t, b, inLine)
		for i, n := range order {
			if n != strconv.Itoa(i) {
				return fmt.Errorf("they entered in the order %v", order)
			}
		}
		return nil
	})
}

// runInLine has so many come one after the other and returns the order in which they
// entered.
func runInLine(t *testing.T, b *bench, inLine int) (order []string) {
	t.Helper()
	b.write(t, "count", "0")
	for _, name := range []string{"in", "order", "fences"} {
		must(t, os.RemoveAll(b.path(name)))
	}
	gate := b.start(t, "run", "sum", "--", "sh", "-c", "echo > in; exec sleep 600")
	eventually(t, "the first holder", func() bool { return b.read("in") != "" })
	s := b.inspector(t)
	all := make([]*program, inLine)
	for i := range all {
		all[i] = b.section(t, strconv.Itoa(i))
		eventually(t, "a place", func() bool { return entry(t, s, "sum").Waiters == i+1 })
	}
	gate.signal(t, syscall.SIGTERM)
	start := time.Now()
	for i, p := range all {
		if code := p.code(t); code != 0 {
			t.Fatalf("process %d ended with %d: %s", i, code, p.stderr.String())
		}
	}
	t.Logf("%d processes took %v, one after the other", inLine, time.Since(start))
	b.checkSum(t, inLine)
	return b.lines("order")
}

// TestRunSomeKilled: a third of sixty processes is killed at random moments. The
// others finish, one at a time, and no key stays stuck.
func TestRunSomeKilled(t *testing.T) { everyStore(t, checkRunSomeKilled) }

func checkRunSomeKilled(t *testing.T, b *bench) {
	const keys = 3
	all := b.most(60)
	// Who was killed inside leaves its mark there, but is not alive any more; a
	// zombie that nobody has buried yet is not.
	const script = `test -e "in.$1" && ps -o stat= -p "$(cat "in.$1")" | grep -q '^[^Z]' && echo "$2" >> overlaps
echo $$ > "in.$1"; sleep 0.02; echo "$2" >> done; rm "in.$1"`
	programs := make([]*program, all)
	for i := range programs {
		key := strconv.Itoa(i % keys)
		programs[i] = b.start(t, "run", "--lease=3s", key, "--", "sh", "-c", script, "sh", key, strconv.Itoa(i))
	}
	victims := rand.Perm(all)[:all/3]
	for _, i := range victims {
		pause := time.NewTimer(rand.N(40 * time.Millisecond))
		<-pause.C
		_ = programs[i].Process.Kill() // it may have ended by itself
		<-programs[i].done
	}
	var late []int
	for i, p := range programs {
		if slices.Contains(victims, i) {
			continue
		}
		switch code := p.code(t); code {
		case 0:
		case 70: // it was held up for so long that it could not trust its lease any more
			late = append(late, i)
		default:
			t.Errorf("process %d ended with %d: %s", i, code, p.stderr.String())
		}
	}
	if len(late) > all/20 {
		t.Errorf("%d processes have lost their leases, the first one so: %s", len(late), programs[late[0]].stderr.String())
	}
	if two := b.lines("overlaps"); len(two) > 0 {
		t.Errorf("not alone: %v", two)
	}
	finished := b.lines("done")
	for i := range programs {
		if !slices.Contains(victims, i) && !slices.Contains(late, i) && !slices.Contains(finished, strconv.Itoa(i)) {
			t.Errorf("process %d did not finish", i)
		}
	}
	for key := range keys {
		if code, _, stderr := b.run(t, "run", "--wait=30s", strconv.Itoa(key), "--", "true"); code != 0 {
			t.Errorf("the key %d is stuck: %d, %s", key, code, stderr)
		}
	}
}

// TestRunHandOver: from the end of one process's section to the beginning of the
// next one's it takes at most 50 ms, in the median, beyond what it takes to start
// a process. Other programs may slow the machine down, so one of three
// measurements has to say so.
func TestRunHandOver(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) { checkRunHandOver(t, newBench) })
	t.Run("redis", func(t *testing.T) { checkRunHandOver(t, newRedisBench) })
	t.Run("postgres", func(t *testing.T) { checkRunHandOver(t, newPostgresBench) })
	t.Run("mariadb", func(t *testing.T) { checkRunHandOver(t, newMariaDBBench) })
}

func checkRunHandOver(t *testing.T, fresh func(*testing.T) *bench) {
	// Other packages' tests have the machine too; one quiet moment is enough.
	const times = 8
	for range times {
		gap, start := measureHandOver(t, fresh(t))
		t.Logf("hand-over: median %v; a whole run with a free key: median %v", gap, start)
		if gap <= 50*time.Millisecond+start {
			return
		}
	}
	t.Errorf("the median hand-over took more than 50 ms, %d times", times)
}

// measureHandOver returns the median time between two sections, and that of a run
// whose key is free.
func measureHandOver(t *testing.T, b *bench) (gap, start time.Duration) {
	t.Helper()
	const rounds = 21
	gate := b.start(t, "run", "k", "--", "sh", "-c", "echo > in; exec sleep 600")
	eventually(t, "the first holder", func() bool { return b.read("in") != "" })
	s := b.inspector(t)
	var all []*program
	for i := range rounds {
		all = append(all, b.start(t, "run", "k", "--", "sh", "-c", "date +%s%N >> times; sleep 0.05; date +%s%N >> times"))
		eventually(t, "a place", func() bool { return entry(t, s, "k").Waiters == i+1 })
	}
	gate.signal(t, syscall.SIGTERM)
	for _, p := range all {
		if code := p.code(t); code != 0 {
			t.Fatalf("%d, %s", code, p.stderr.String())
		}
	}
	times := b.lines("times")
	if len(times) != 2*rounds {
		t.Fatalf("%d times", len(times))
	}
	var gaps, starts []time.Duration
	for i := 2; i < len(times); i += 2 {
		gaps = append(gaps, time.Duration(number(t, times[i])-number(t, times[i-1])))
	}
	for range rounds {
		began := time.Now()
		if code, _, stderr := b.run(t, "run", "free", "--", "true"); code != 0 {
			t.Fatal(stderr)
		}
		starts = append(starts, time.Since(began))
	}
	slices.Sort(gaps)
	slices.Sort(starts)
	return gaps[len(gaps)/2], starts[len(starts)/2]
}

// TestRunPermits: so many may be inside at once, and not one more; whoever
// disagrees on the number is refused.
func TestRunPermits(t *testing.T) { everyStore(t, checkRunPermits) }

func checkRunPermits(t *testing.T, b *bench) {
	t.Parallel()
	const permits = 3
	var all []*program
	for i := range 2 * permits {
		all = append(all, b.start(t, "run", "--permits=3", "k", "--", "sh", "-c", fmt.Sprintf("echo %d >> in; while ! test -e go; do sleep 0.01; done; echo >> out", i)))
	}
	s := b.inspector(t)
	eventually(t, "holders and waiters", func() bool {
		e := entry(t, s, "k")
		return len(e.Attempts) == permits && e.Waiters == permits && len(b.lines("in")) == permits
	})
	for flag, says := range map[string]string{"--permits=2": "is in use with 3 permits, not 2", "--permits=1": "is in use with 3 permits, not 1"} {
		if code, _, stderr := b.run(t, "run", flag, "k", "--", "touch", "ran"); code != 64 || !strings.Contains(stderr, says) {
			t.Errorf("%s: %d, %q", flag, code, stderr)
		}
	}
	if code, stdout, _ := b.run(t, "ls"); code != 0 || strings.Count(stdout, "\nk ") != permits {
		t.Errorf("ls: %d\n%s", code, stdout)
	}
	if n := len(b.lines("in")); n != permits {
		t.Errorf("%d are inside", n)
	}
	b.write(t, "go", "")
	for _, p := range all {
		if code := p.code(t); code != 0 {
			t.Errorf("%d, %s", code, p.stderr.String())
		}
	}
	if n := len(b.lines("in")); n != 2*permits {
		t.Errorf("%d ran", n)
	}
}
