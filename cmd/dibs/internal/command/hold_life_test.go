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
	"github.com/dibs-go/dibs/internal/pace"
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
			p := b.start(t, "run", "--lease=3s", "k", "--", "sh", "-c", script)
			if code := p.code(t); code != 0 || !strings.Contains(p.stderr.String(), "left processes behind") {
				t.Errorf("%d, %q", code, p.stderr.String())
			}
			if took := time.Since(start); took > 15*time.Second {
				t.Errorf("it took %v", took)
			}
			if alive(t, b.read("pid")) {
				t.Error("the straggler lives on")
			}
		})
	}
}

// TestRunKeepsTheKey: a command that runs for three leases keeps its key.
func TestRunKeepsTheKey(t *testing.T) {
	t.Parallel()
	everyStore(t, checkRunKeepsTheKey)
}

func checkRunKeepsTheKey(t *testing.T, b *bench) {
	t.Parallel()
	s := b.inspector(t)
	n := 0
	pace.Retry(t, stoodStill, func() error {
		n++
		key := fmt.Sprint("k", n)
		p := b.start(t, "run", "--lease=3s", key, "--", "sleep", "9")
		eventually(t, "the holder", func() bool { return entry(t, s, key).Condition == dibs.ConditionHeld })
		id := entry(t, s, key).Attempts[0].ID
		var lost error
		for ended := false; !ended; {
			if e := entry(t, s, key); e.Condition == dibs.ConditionHeld && e.Attempts[0].ID != id || e.Condition == dibs.ConditionAbandoned {
				lost = fmt.Errorf("the key is %+v", e)
			}
			select {
			case <-p.done:
				ended = true
			case <-time.After(20 * time.Millisecond):
			}
		}
		if code := p.code(t); code != 0 && lost == nil {
			lost = fmt.Errorf("it ended with %d", code)
		}
		return lost
	})
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
	n := 0
	pace.Retry(t, stoodStill, func() error {
		n++
		if late := killHolder(t, b, fmt.Sprint("k", n), lease); late > time.Second {
			return fmt.Errorf("the end of the command, or the entry of the next one after the lease, was late by %v", late)
		}
		return nil
	})
}

// killHolder kills a holder of the key, and returns how late what follows was: the end of
// its command after that, or the entry of the next one after the end of the lease.
func killHolder(t *testing.T, b *bench, key string, lease time.Duration) (late time.Duration) {
	t.Helper()
	file := func(name string) string { return key + "." + name }
	p := b.start(t, "run", "--lease="+lease.String(), key, "--", "sh", "-c", "echo $$ > "+file("pid")+"; sleep 600 & echo $! > "+file("child")+"; wait")
	eventually(t, "the command", func() bool { return strings.HasSuffix(b.read(file("child")), "\n") })
	next := b.start(t, "run", "--lease="+lease.String(), key, "--", "touch", file("next"))
	s := b.inspector(t)
	eventually(t, "the waiter", func() bool { return entry(t, s, key).Waiters == 1 })
	asked := time.Now()
	left := entry(t, s, key).Attempts[0].Left
	p.signal(t, syscall.SIGKILL)
	killed := time.Now()
	eventually(t, "the end of the command", func() bool { return !alive(t, b.read(file("pid"))) && !alive(t, b.read(file("child"))) })
	ended := time.Since(killed)
	if code := next.code(t); code != 0 || !strings.Contains(next.stderr.String(), "did not finish; this is attempt 2") {
		t.Errorf("the next one: %d, %q", code, next.stderr.String())
	}
	info, err := os.Stat(b.path(file("next")))
	if err != nil {
		t.Fatal(err)
	}
	entered := info.ModTime()
	t.Logf("the command had ended %v after the kill, and the next one entered after %v; the lease had %v left", ended, entered.Sub(killed), left)
	if after := entered.Sub(asked); after < left-100*time.Millisecond {
		t.Errorf("the next one entered %v after the lease had %v left", after, left)
	}
	return max(ended, entered.Sub(killed)-lease)
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
	p := b.start(t, "run", "--lease=2s", "k", "--", "sh", "-c", script, "sh", "old")
	eventually(t, "the holder", func() bool { return strings.HasSuffix(b.read("fence.old"), "\n") })
	old := number(t, b.read("fence.old"))
	eventually(t, "its writes", func() bool { n, _ := g.counts(old); return n > 2 })
	p.signal(t, syscall.SIGSTOP)
	stopped := time.Now()
	next := b.start(t, "run", "--lease=2s", "k", "--", "sh", "-c", script, "sh", "new")
	eventually(t, "the successor", func() bool { return strings.HasSuffix(b.read("fence.new"), "\n") })
	newer := number(t, b.read("fence.new"))
	eventually(t, "its writes", func() bool { n, _ := g.counts(newer); return n > 2 })
	if newer <= old {
		t.Errorf("the fence went from %d to %d", old, newer)
	}
	eventually(t, "three leases", func() bool { return time.Since(stopped) > 6*time.Second })
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
	const lease = 2 * time.Second
	n := 0
	pace.Retry(t, stoodStill, func() error {
		n++
		if after := stickStore(t, b, fmt.Sprint("k", n), lease, stick); after > lease {
			return fmt.Errorf("the command was asked to end %v after the store was stuck; the lease is %v", after, lease)
		}
		return nil
	})
}

// stickStore has the store stick under a holder of the key, and returns how long after that its
// command was asked to end.
func stickStore(t *testing.T, b *bench, key string, lease time.Duration, stick func() (unstick func())) (after time.Duration) {
	t.Helper()
	p := b.start(t, "run", "--lease="+lease.String(), key, "--", "sh", "-c", "trap 'date +%s%N > "+key+".ended; exit 5' TERM; echo $$ > "+key+".pid; while :; do sleep 0.01; done")
	eventually(t, "the command", func() bool { return strings.HasSuffix(b.read(key+".pid"), "\n") })
	unstick := stick()
	began := time.Now()
	eventually(t, "the end of the command", func() bool { return strings.HasSuffix(b.read(key+".ended"), "\n") })
	ended := time.Unix(0, int64(number(t, b.read(key+".ended"))))
	unstick()
	if code := p.code(t); code != 70 || !strings.Contains(p.stderr.String(), "was lost while the command ran") {
		t.Errorf("%d, %q", code, p.stderr.String())
	}
	if alive(t, b.read(key+".pid")) {
		t.Error("the command lives on")
	}
	return ended.Sub(began)
}

// TestRunBusyAtTheEnd: a transaction that keeps the key's row locked when the command
// ends is outlasted: the key is given back, and a success that is to be remembered is.
func TestRunBusyAtTheEnd(t *testing.T) {
	t.Parallel()
	for key, flags := range map[string][]string{"plain": nil, "once": {"--once-per=1h"}} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			b := newPostgresBench(t)
			_, schema, _ := strings.Cut(b.store, "&schema=")
			p := b.start(t, append(append([]string{"run"}, flags...), key, "--", "sh", "-c", "while ! test -e "+key+".go; do sleep 0.01; done; echo ran >> "+key+".ran")...)
			eventually(t, "the holder", func() bool { return entry(t, b.inspector(t), key).Condition == dibs.ConditionHeld })
			// Longer than a call of the store may take.
			locked := fmt.Sprintf("BEGIN; SELECT 1 FROM %s.dibs_key FOR UPDATE; SELECT pg_sleep(6); COMMIT", schema)
			unlocked := make(chan error, 1)
			go func() {
				_, err := sharedPostgres().Do(locked)
				unlocked <- err
			}()
			eventually(t, "the lock", func() bool {
				rows, err := sharedPostgres().Do("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE '%" + schema + ".dibs_key%'")
				return err == nil && len(rows) > 0
			})
			b.write(t, key+".go", "")
			if code := p.code(t); code != 0 || p.stderr.String() != "" {
				t.Errorf("%d, %q", code, p.stderr.String())
			}
			if err := <-unlocked; err != nil {
				t.Error(err)
			}
			if code, _, stderr := b.run(t, append(append([]string{"run", "--skip"}, flags...), key, "--", "sh", "-c", "echo ran >> "+key+".ran")...); code != 0 {
				t.Errorf("the next one: %d, %q", code, stderr)
			}
			if n, want := len(b.lines(key+".ran")), 2-len(flags); n != want {
				t.Errorf("it ran %d times; want %d", n, want)
			}
		})
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
	p := b.start(t, "run", "--lease=9s", "k", "--", "sleep", "600")
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
	if took := time.Since(released); took > 7500*time.Millisecond {
		t.Errorf("the holder noticed after %v; a third of its lease is 3s", took)
	}
}
