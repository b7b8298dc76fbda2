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

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// TestRunSignals: each signal reaches the command, which may do with it what it
// likes, and the key is free at once.
func TestRunSignals(t *testing.T) {
	for name, signal := range map[string]syscall.Signal{
		"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP,
		"QUIT": syscall.SIGQUIT, "USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			p := b.start(t, "run", "k", "--", "sh", "-c", "trap 'echo "+name+" > got; exit 9' "+name+"; echo > in; while :; do sleep 0.01; done")
			eventually(t, "the command", func() bool { return b.read("in") != "" })
			next := b.start(t, "run", "k", "--", "touch", "next")
			s := b.inspector(t)
			eventually(t, "the waiter", func() bool { return entry(t, s, "k").Waiters == 1 })
			p.signal(t, signal)
			if code := p.code(t); code != 9 || strings.TrimSpace(b.read("got")) != name {
				t.Errorf("%d, got %q", code, b.read("got"))
			}
			start := time.Now()
			if code := next.code(t); code != 0 || time.Since(start) > 5*time.Second {
				t.Errorf("the next one ended with %d after %v", code, time.Since(start))
			}
		})
	}
}

// TestRunSecondInterrupt: a command that does not mind the first SIGINT is
// killed by the second.
func TestRunSecondInterrupt(t *testing.T) {
	b := newBench(t)
	p := b.start(t, "run", "k", "--", "sh", "-c", "trap 'echo >> got' INT; echo > in; while :; do sleep 0.01; done")
	eventually(t, "the command", func() bool { return b.read("in") != "" })
	p.signal(t, syscall.SIGINT)
	eventually(t, "the first SIGINT", func() bool { return b.read("got") != "" })
	p.signal(t, syscall.SIGINT)
	if code := p.code(t); code != 137 {
		t.Errorf("it ended with %d", code)
	}
}

// TestRunStragglers: what a command leaves running in its group is ended before
// the key is given back, also when it does not mind TERM.
func TestRunStragglers(t *testing.T) {
	b := newBench(t)
	for name, script := range map[string]string{
		"obedient": "sleep 600 & echo $! > pid",
		"stubborn": "sh -c 'trap : TERM; echo > deaf; while :; do sleep 600; done' & echo $! > pid; while ! test -e deaf; do sleep 0.01; done",
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			p := b.start(t, "run", "--lease=1s", "k", "--", "sh", "-c", script)
			if code := p.code(t); code != 0 || !strings.Contains(p.stderr.String(), "left processes behind") {
				t.Errorf("%d, %q", code, p.stderr.String())
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
			if alive(t, b.read("pid")) {
				t.Error("the straggler lives on")
			}
		})
	}
}

// TestRunKeepsTheKey: a command that runs for four leases keeps its key.
func TestRunKeepsTheKey(t *testing.T) {
	t.Parallel()
	everyStore(t, checkRunKeepsTheKey)
}

func checkRunKeepsTheKey(t *testing.T, b *bench) {
	t.Parallel()
	p := b.start(t, "run", "--lease=1s", "k", "--", "sleep", "4")
	s := b.inspector(t)
	eventually(t, "the holder", func() bool { return entry(t, s, "k").Condition == dibs.ConditionHeld })
	id := entry(t, s, "k").Attempts[0].ID
	for ended := false; !ended; {
		if e := entry(t, s, "k"); e.Condition == dibs.ConditionHeld && e.Attempts[0].ID != id || e.Condition == dibs.ConditionAbandoned {
			t.Fatalf("the key is %+v", e)
		}
		select {
		case <-p.done:
			ended = true
		case <-time.After(20 * time.Millisecond):
		}
	}
	if code := p.code(t); code != 0 {
		t.Errorf("it ended with %d", code)
	}
}

// TestRunKilled: kill -9 of the program ends its command at once, and the next
// one enters when the lease has run out: not before, and within a second.
func TestRunKilled(t *testing.T) {
	t.Parallel()
	everyStore(t, checkRunKilled)
}

func checkRunKilled(t *testing.T, b *bench) {
	t.Parallel()
	const lease = 2 * time.Second
	p := b.start(t, "run", "--lease="+lease.String(), "k", "--", "sh", "-c", "echo $$ > pid; sleep 600 & echo $! > child; wait")
	eventually(t, "the command", func() bool { return strings.HasSuffix(b.read("child"), "\n") })
	next := b.start(t, "run", "--lease="+lease.String(), "k", "--", "touch", "next")
	s := b.inspector(t)
	eventually(t, "the waiter", func() bool { return entry(t, s, "k").Waiters == 1 })
	left := entry(t, s, "k").Attempts[0].Left
	p.signal(t, syscall.SIGKILL)
	killed := time.Now()
	eventually(t, "the end of the command", func() bool { return !alive(t, b.read("pid")) && !alive(t, b.read("child")) })
	if took := time.Since(killed); took > lease/2 {
		t.Errorf("the command lived on for %v", took)
	}
	if code := next.code(t); code != 0 || !strings.Contains(next.stderr.String(), "did not finish; this is attempt 2") {
		t.Errorf("the next one: %d, %q", code, next.stderr.String())
	}
	info, err := os.Stat(b.path("next"))
	if err != nil {
		t.Fatal(err)
	}
	after := info.ModTime().Sub(killed)
	t.Logf("the next one entered %v after the kill; the lease had %v left", after, left)
	if after > lease+time.Second || after < left-100*time.Millisecond {
		t.Errorf("the next one entered %v after the kill; the lease had %v left", after, left)
	}
}

// TestWatchdogKilled: nobody watches any more, so the command is ended.
func TestWatchdogKilled(t *testing.T) {
	b := newBench(t)
	p := b.start(t, "run", "k", "--", "sh", "-c", "echo $$ > pid; ps -o pgid= -p $$ > group; exec sleep 600")
	eventually(t, "the command", func() bool { return strings.HasSuffix(b.read("group"), "\n") })
	group, err := strconv.Atoi(strings.TrimSpace(b.read("group"))) // the watchdog leads it
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(group, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.signal(t, syscall.SIGTERM)
	if code := p.code(t); code != 143 || alive(t, b.read("pid")) {
		t.Errorf("%d; the command is alive: %v", code, alive(t, b.read("pid")))
	}
	if code, _, stderr := b.run(t, "run", "--skip", "k", "--", "true"); code != 0 {
		t.Errorf("the key is not free: %d, %s", code, stderr)
	}
}

// guarded is a resource that remembers the highest fence it saw and refuses
// lower ones.
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

// TestRunStopped: the program is stopped for three leases. Its command, which is
// not, goes on writing; the guarded resource refuses that as soon as a successor
// has written. When the program wakes it ends the command, with 70.
func TestRunStopped(t *testing.T) {
	t.Parallel()
	g := &guarded{accepted: map[uint64]int{}, refused: map[uint64]int{}}
	resource := httptest.NewServer(g)
	defer resource.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t)
	b.env = []string{writer + "=" + resource.URL}
	script := `echo $$ > pid.$1; echo $DIBS_FENCE > fence.$1; exec ` + self
	p := b.start(t, "run", "--lease=1s", "k", "--", "sh", "-c", script, "sh", "old")
	eventually(t, "the holder", func() bool { return strings.HasSuffix(b.read("fence.old"), "\n") })
	old := number(t, b.read("fence.old"))
	eventually(t, "its writes", func() bool { n, _ := g.counts(old); return n > 2 })
	p.signal(t, syscall.SIGSTOP)
	stopped := time.Now()
	next := b.start(t, "run", "--lease=1s", "k", "--", "sh", "-c", script, "sh", "new")
	eventually(t, "the successor", func() bool { return strings.HasSuffix(b.read("fence.new"), "\n") })
	newer := number(t, b.read("fence.new"))
	eventually(t, "its writes", func() bool { n, _ := g.counts(newer); return n > 2 })
	if newer <= old {
		t.Errorf("the fence went from %d to %d", old, newer)
	}
	eventually(t, "three leases", func() bool { return time.Since(stopped) > 3*time.Second })
	if !alive(t, b.read("pid.old")) {
		t.Error("the command of the stopped program has ended; there is nothing to fence off")
	}
	if _, refused := g.counts(old); refused == 0 {
		t.Error("no late write was refused")
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
		t.Errorf("the successor ended with %d, %q", code, next.stderr.String())
	}
}

// TestRunStoreStuck: when the store cannot be written any more, the command ends
// while nobody else can have the key, and the program says that it was lost.
func TestRunStoreStuck(t *testing.T) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		checkRunStoreStuck(t, b, func() (unstick func()) { return lockWriters(t, b.path("dibs.db")) })
	})
	for name, trouble := range map[string]func(*servertest.RedisServer) (unstick func()){
		"redis hangs":   func(s *servertest.RedisServer) func() { s.Pause(); return s.Continue },
		"redis is gone": func(s *servertest.RedisServer) func() { s.Kill(); return s.Restart },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t, nil)
			b := &bench{dir: t.TempDir(), store: server.URL()}
			checkRunStoreStuck(t, b, func() func() { return trouble(server) })
		})
	}
}

func checkRunStoreStuck(t *testing.T, b *bench, stick func() (unstick func())) {
	p := b.start(t, "run", "--lease=2s", "k", "--", "sh", "-c", "trap 'date +%s%N > ended; exit 5' TERM; echo $$ > pid; while :; do sleep 0.01; done")
	eventually(t, "the command", func() bool { return strings.HasSuffix(b.read("pid"), "\n") })
	unstick := stick()
	stuck := time.Now()
	eventually(t, "the end of the command", func() bool { return strings.HasSuffix(b.read("ended"), "\n") })
	ended := time.Unix(0, int64(number(t, b.read("ended"))))
	if after := ended.Sub(stuck); after > 2*time.Second {
		t.Errorf("the command was asked to end %v after the store was stuck; the lease is 2s", after)
	}
	unstick()
	if code := p.code(t); code != 70 || !strings.Contains(p.stderr.String(), "was lost while the command ran") {
		t.Errorf("%d, %q", code, p.stderr.String())
	}
	if alive(t, b.read("pid")) {
		t.Error("the command lives on")
	}
}

// lockWriters takes the lock of SQLite that every writer of a file takes: the
// byte 120 of its shared memory (https://sqlite.org/walformat.html, 2.3.1).
// This process must not have the file open otherwise.
func lockWriters(t *testing.T, path string) (unlock func()) {
	t.Helper()
	f, err := os.OpenFile(path+"-shm", os.O_RDWR, 0)
	must(t, err)
	unlock = sync.OnceFunc(func() { f.Close() })
	t.Cleanup(unlock)
	must(t, syscall.FcntlFlock(f.Fd(), syscall.F_SETLKW, &syscall.Flock_t{Type: syscall.F_WRLCK, Start: 120, Len: 1}))
	return unlock
}

// TestRunReleasedByOperator: dibs release ends the command within a third of the
// lease, and the waiter moves up at once.
func TestRunReleasedByOperator(t *testing.T) {
	t.Parallel()
	everyStore(t, checkRunReleasedByOperator)
}

func checkRunReleasedByOperator(t *testing.T, b *bench) {
	t.Parallel()
	p := b.start(t, "run", "--lease=3s", "k", "--", "sleep", "600")
	s := b.inspector(t)
	eventually(t, "the holder", func() bool { return entry(t, s, "k").Condition == dibs.ConditionHeld })
	next := b.start(t, "run", "k", "--", "true")
	eventually(t, "the waiter", func() bool { return entry(t, s, "k").Waiters == 1 })
	if code, stdout, stderr := b.run(t, "release", "--yes", "k"); code != 0 || stdout != "k is released: who waits moves up\n" {
		t.Errorf("release: %d, %q, %q", code, stdout, stderr)
	}
	released := time.Now()
	if code := next.code(t); code != 0 {
		t.Errorf("the waiter ended with %d", code)
	}
	if code := p.code(t); code != 70 {
		t.Errorf("the holder ended with %d, %q", code, p.stderr.String())
	}
	if took := time.Since(released); took > 2500*time.Millisecond {
		t.Errorf("the holder noticed after %v; a third of its lease is 1s", took)
	}
}
