//go:build unix

package command_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestRunSignals: each signal reaches the command. When the command ends, the key is free
// before the lease expires.
func TestRunSignals(t *testing.T) {
	t.Parallel()
	for name, signal := range map[string]syscall.Signal{
		"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP,
		"QUIT": syscall.SIGQUIT, "USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			// The key is free before the lease expires.
			p := b.start(t, "run", "--lease=1h", "k", "--", "sh", "-c", "trap 'echo "+name+" > got; exit 9' "+name+"; echo > in; while :; do sleep 0.01; done")
			testkit.Eventually(t, "the command", func() bool { return b.read("in") != "" })
			next := b.start(t, "run", "k", "--", "touch", "next")
			s := b.inspector(t)
			testkit.Eventually(t, "the waiter", func() bool { return entry(t, s, "k").Waiters == 1 })
			p.signal(t, signal)
			if code := p.code(t); code != 9 || strings.TrimSpace(b.read("got")) != name {
				t.Errorf("%d, got %q", code, b.read("got"))
			}
			if code := next.code(t); code != 0 {
				t.Errorf("the next one exited with %d", code)
			}
		})
	}
}

// TestRunSecondInterrupt: a command that ignores the first SIGINT is killed by the second.
func TestRunSecondInterrupt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.start(t, "run", "k", "--", "sh", "-c", "trap 'echo >> got' INT; echo > in; while :; do sleep 0.01; done")
	testkit.Eventually(t, "the command", func() bool { return b.read("in") != "" })
	p.signal(t, syscall.SIGINT)
	testkit.Eventually(t, "the first SIGINT", func() bool { return b.read("got") != "" })
	p.signal(t, syscall.SIGINT)
	if code := p.code(t); code != 137 {
		t.Errorf("it exited with %d", code)
	}
}

// TestRunStragglers: processes that a command leaves in its group are ended before the key is
// released, even if they ignore TERM.
func TestRunStragglers(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"obedient": "sleep 600 & echo $! > pid",
		"stubborn": "sh -c 'trap : TERM; echo > ignoring; while :; do sleep 600; done' & echo $! > pid; while ! test -e ignoring; do sleep 0.01; done",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			p := b.start(t, "run", "--lease=1h", "k", "--", "sh", "-c", script)
			if code := p.code(t); code != 0 || !strings.Contains(p.stderr.String(), "left processes behind") {
				t.Errorf("%d, %q", code, p.stderr.String())
			}
			if alive(t, b.read("pid")) {
				t.Error("the straggler lives on")
			}
		})
	}
}

// TestRunLeavesChildren: with --leave-children, a process that the command left continues after dibs
// run has ended, and does not keep the key.
func TestRunLeavesChildren(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.start(t, "run", "--leave-children", "k", "--", "sh", "-c",
		"(while ! test -e enough; do sleep 0.01; done; echo > survived) >/dev/null 2>&1 &")
	if code := p.code(t); code != 0 || p.stderr.String() != "" {
		t.Errorf("%d, %q", code, p.stderr.String())
	}
	if code := b.start(t, "run", "--skip", "k", "--", "true").code(t); code != 0 {
		t.Errorf("the next run exited with %d", code)
	}
	b.write(t, "enough", "")
	testkit.Eventually(t, "the end of the process that was left", func() bool { return b.read("survived") != "" })
}

// TestRunKeepsTheKey: while the command runs, the lease is renewed and stays the same
// holder's.
func TestRunKeepsTheKey(t *testing.T) {
	t.Parallel()
	everyStore(t, checkRunKeepsTheKey)
}

func checkRunKeepsTheKey(t *testing.T, b *bench) {
	t.Parallel()
	p := b.start(t, "run", "--lease=15s", "k", "--", "sh", "-c", "while ! test -e enough; do sleep 0.1; done")
	s := b.inspector(t)
	testkit.Eventually(t, "the holder", func() bool { return entry(t, s, "k").Condition == store.ConditionHeld })
	first := entry(t, s, "k").Runs[0]
	left := first.Left
	testkit.Eventually(t, "a renewal", func() bool {
		e := entry(t, s, "k")
		if len(e.Runs) != 1 || e.Runs[0].ID != first.ID {
			t.Fatalf("the key is %+v", e)
		}
		before := left
		left = e.Runs[0].Left
		return left > before
	})
	b.write(t, "enough", "")
	if code := p.code(t); code != 0 {
		t.Errorf("it exited with %d", code)
	}
}

// killLease is the lease of runs that are killed. It is long, because it must not expire
// before the kill.
const killLease = 10 * time.Second

// TestRunKilled: if the program is killed while its command runs, the command ends. The next
// run gets the key when the lease expires, not before.
func TestRunKilled(t *testing.T) {
	t.Parallel()
	everyStore(t, checkRunKilled)
}

func checkRunKilled(t *testing.T, b *bench) {
	t.Parallel()
	p := b.start(t, "run", "--lease="+killLease.String(), "k", "--", "sh", "-c", "echo $$ > pid; sleep 600 & echo $! > child; wait")
	testkit.Eventually(t, "the command", func() bool { return strings.HasSuffix(b.read("child"), "\n") })
	next := b.start(t, "run", "k", "--", "touch", "next")
	s := b.inspector(t)
	testkit.Eventually(t, "the waiter", func() bool { return entry(t, s, "k").Waiters == 1 })
	asked := time.Now()
	left := entry(t, s, "k").Runs[0].Left
	p.signal(t, syscall.SIGKILL)
	testkit.Eventually(t, "the end of the command", func() bool { return !alive(t, b.read("pid")) && !alive(t, b.read("child")) })
	if code := next.code(t); code != 0 || !strings.Contains(next.stderr.String(), "did not finish; this is attempt 2") {
		t.Errorf("the next one: %d, %q", code, next.stderr.String())
	}
	info, err := os.Stat(b.path("next"))
	testkit.Must(t, err)
	// The store and the file system have clocks of their own, of some precision.
	if after := info.ModTime().Sub(asked); after < left-100*time.Millisecond {
		t.Errorf("the next one entered %v after the lease had %v left", after, left)
	}
}

// TestRunKilledWaiting: if a waiter is killed, the next waiter gets the key.
func TestRunKilledWaiting(t *testing.T) {
	t.Parallel()
	everyStore(t, checkRunKilledWaiting)
}

func checkRunKilledWaiting(t *testing.T, b *bench) {
	t.Parallel()
	holder := b.start(t, "run", "--lease=1h", "k", "--", "sleep", "600")
	s := b.inspector(t)
	waiters := func(n int) {
		t.Helper()
		testkit.Eventually(t, "waiters", func() bool { return entry(t, s, "k").Waiters == n })
	}
	testkit.Eventually(t, "the holder", func() bool { return entry(t, s, "k").Condition == store.ConditionHeld })
	killed := b.start(t, "run", "--lease=1h", "k", "--", "touch", "killed")
	waiters(1)
	next := b.start(t, "run", "k", "--", "touch", "next")
	waiters(2)
	killed.signal(t, syscall.SIGKILL)
	<-killed.done
	holder.signal(t, syscall.SIGTERM)
	if code := next.code(t); code != 0 || !b.exists("next") || b.exists("killed") {
		t.Errorf("the next one exited with %d; the command of the killed one ran: %v", code, b.exists("killed"))
	}
}

// TestRunKilledGivingBack: the program is killed after its command has ended and before the
// key is settled. The key is free when the lease expires, and the success does not count.
func TestRunKilledGivingBack(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.start(t, "run", "--lease="+killLease.String(), "--once-per=1h", "k", "--", "sh", "-c", "echo $$ > pid; while ! test -e go; do sleep 0.01; done; echo ran >> ran")
	testkit.Eventually(t, "the command", func() bool { return strings.HasSuffix(b.read("pid"), "\n") })
	unlock := lockWriters(t, b.path("dibs.db"))
	b.write(t, "go", "")
	testkit.Eventually(t, "the end of the command", func() bool { return !alive(t, b.read("pid")) })
	p.signal(t, syscall.SIGKILL)
	<-p.done
	unlock()
	code, _, stderr := b.run(t, "run", "--once-per=1h", "k", "--", "sh", "-c", "echo ran >> ran")
	if code != 0 || !strings.Contains(stderr, "did not finish; this is attempt 2") || len(b.lines("ran")) != 2 {
		t.Errorf("the next one: %d, %q; it ran %d times", code, stderr, len(b.lines("ran")))
	}
}

// TestWatchdogKilled: if the watchdog is killed, the command is ended.
func TestWatchdogKilled(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.start(t, "run", "--lease=1h", "k", "--", "sh", "-c", "echo $$ > pid; ps -o pgid= -p $$ > group; exec sleep 600")
	testkit.Eventually(t, "the command", func() bool { return strings.HasSuffix(b.read("group"), "\n") })
	group, err := strconv.Atoi(strings.TrimSpace(b.read("group"))) // the watchdog leads it
	testkit.Must(t, err)
	testkit.Must(t, syscall.Kill(group, syscall.SIGKILL))
	p.signal(t, syscall.SIGTERM)
	if code := p.code(t); code != 143 || alive(t, b.read("pid")) {
		t.Errorf("%d; the command is alive: %v", code, alive(t, b.read("pid")))
	}
	if code, _, stderr := b.run(t, "run", "--skip", "k", "--", "true"); code != 0 {
		t.Errorf("the key is not free: %d, %s", code, stderr)
	}
}

// guarded is a resource that refuses fences below the highest that it has had.
type guarded struct {
	mu       sync.Mutex
	highest  uint64
	accepted map[uint64]int // by fence
	refused  map[uint64]int
}

func (g *guarded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var fence uint64
	if _, err := fmt.Sscan(r.URL.Query().Get("fence"), &fence); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if fence < g.highest {
		g.refused[fence]++
		http.Error(w, "there was a newer holder", http.StatusConflict)
		return
	}
	g.highest = fence
	g.accepted[fence]++
}

func (g *guarded) counts(fence uint64) (accepted, refused int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.accepted[fence], g.refused[fence]
}

// TestRunStopped: the program is stopped for longer than its lease, and its command continues
// writing. The guarded resource refuses that after the next holder has written. When the
// program continues, it ends the command, with 70.
func TestRunStopped(t *testing.T) {
	t.Parallel()
	g := &guarded{accepted: map[uint64]int{}, refused: map[uint64]int{}}
	resource := httptest.NewServer(g)
	defer resource.Close()
	self, err := os.Executable()
	testkit.Must(t, err)
	b := newBench(t)
	b.env = []string{writer + "=" + resource.URL}
	script := `echo $$ > pid.$1; echo $DIBS_FENCE > fence.$1; exec ` + self
	p := b.start(t, "run", "--lease="+killLease.String(), "k", "--", "sh", "-c", script, "sh", "old")
	testkit.Eventually(t, "the holder", func() bool { return strings.HasSuffix(b.read("fence.old"), "\n") })
	old := number(t, b.read("fence.old"))
	testkit.Eventually(t, "its writes", func() bool { n, _ := g.counts(old); return n > 2 })
	p.signal(t, syscall.SIGSTOP)
	next := b.start(t, "run", "--lease=1h", "k", "--", "sh", "-c", script, "sh", "new")
	testkit.Eventually(t, "the successor", func() bool { return strings.HasSuffix(b.read("fence.new"), "\n") })
	newer := number(t, b.read("fence.new"))
	testkit.Eventually(t, "its writes", func() bool { n, _ := g.counts(newer); return n > 2 })
	if newer <= old {
		t.Errorf("the fence went from %d to %d", old, newer)
	}
	testkit.Eventually(t, "a late write that is refused", func() bool { _, refused := g.counts(old); return refused > 0 })
	if !alive(t, b.read("pid.old")) {
		t.Error("the command of the stopped program has ended; there is nothing to fence off")
	}
	if _, refused := g.counts(newer); refused > 0 {
		t.Errorf("%d writes of the successor were refused", refused)
	}
	p.signal(t, syscall.SIGCONT)
	if code := p.code(t); code != 70 || !strings.Contains(p.stderr.String(), "was lost while the command ran") {
		t.Errorf("%d, %q", code, p.stderr.String())
	}
	if alive(t, b.read("pid.old")) {
		t.Error("the command lives on")
	}
	next.signal(t, syscall.SIGTERM)
	if code := next.code(t); code != 143 {
		t.Errorf("the successor exited with %d, %q", code, next.stderr.String())
	}
}

// TestRunStoreStuck: if the store cannot be written, the command gets TERM, and the program
// says that the key was lost.
func TestRunStoreStuck(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	stickStore(t, b, killLease, func() (unstick func()) { return lockWriters(t, b.path("dibs.db")) })
}

// stickStore has the store stick under a holder of a key, and returns how long after that
// its command was asked to end.
func stickStore(t *testing.T, b *bench, lease time.Duration, stick func() (unstick func())) (after time.Duration) {
	t.Helper()
	p := b.start(t, "run", "--lease="+lease.String(), "k", "--", "sh", "-c", "trap 'date +%s%N > ended; exit 5' TERM; echo $$ > pid; while :; do sleep 0.01; done")
	testkit.Eventually(t, "the command", func() bool { return strings.HasSuffix(b.read("pid"), "\n") })
	unstick := stick()
	began := time.Now()
	testkit.Eventually(t, "the end of the command", func() bool { return strings.HasSuffix(b.read("ended"), "\n") })
	ended := time.Unix(0, int64(number(t, b.read("ended"))))
	unstick()
	if code := p.code(t); code != 70 || !strings.Contains(p.stderr.String(), "was lost while the command ran") {
		t.Errorf("%d, %q", code, p.stderr.String())
	}
	if alive(t, b.read("pid")) {
		t.Error("the command lives on")
	}
	return ended.Sub(began)
}

// lockWriters takes the lock of SQLite that every writer of a file takes: the
// byte 120 of its shared memory (https://sqlite.org/walformat.html, 2.3.1).
// This process must not have the file open otherwise.
func lockWriters(t *testing.T, path string) (unlock func()) {
	t.Helper()
	f, err := os.OpenFile(path+"-shm", os.O_RDWR, 0)
	testkit.Must(t, err)
	unlock = sync.OnceFunc(func() { f.Close() })
	t.Cleanup(unlock)
	testkit.Must(t, syscall.FcntlFlock(f.Fd(), syscall.F_SETLKW, &syscall.Flock_t{Type: syscall.F_WRLCK, Start: 120, Len: 1}))
	return unlock
}

// TestRunReleasedByOperator: dibs release gives the key to the next waiter, and ends the
// command at the next renewal.
func TestRunReleasedByOperator(t *testing.T) {
	t.Parallel()
	everyStore(t, checkRunReleasedByOperator)
}

func checkRunReleasedByOperator(t *testing.T, b *bench) {
	t.Parallel()
	p := b.start(t, "run", "--lease=15s", "k", "--", "sleep", "600")
	s := b.inspector(t)
	testkit.Eventually(t, "the holder", func() bool { return entry(t, s, "k").Condition == store.ConditionHeld })
	next := b.start(t, "run", "k", "--", "true")
	testkit.Eventually(t, "the waiter", func() bool { return entry(t, s, "k").Waiters == 1 })
	if code, stdout, stderr := b.run(t, "release", "--yes", "k"); code != 0 || stdout != "k is released: the next waiter gets it\n" {
		t.Errorf("release: %d, %q, %q", code, stdout, stderr)
	}
	if code := next.code(t); code != 0 {
		t.Errorf("the waiter exited with %d", code)
	}
	if code := p.code(t); code != 70 {
		t.Errorf("the holder exited with %d, %q", code, p.stderr.String())
	}
}
