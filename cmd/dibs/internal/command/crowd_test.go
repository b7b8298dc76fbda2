//go:build nightly

package command_test

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// crowd is how many processes start at once, or wait in one queue.
const crowd = 100

// most bounds the processes on a database server, because each has its own connections, and
// a waiter on MySQL polls.
func (b *bench) most(n int) int {
	switch {
	case strings.HasPrefix(b.store, "mysql:"):
		return n / 4
	case strings.HasPrefix(b.store, "postgres:"):
		return n / 2
	}
	return n
}

// TestRunCrowd: a hundred processes at once each add one to a number in a file.
func TestRunCrowd(t *testing.T) {
	everyStore(t, func(t *testing.T, b *bench) { checkRunMany(t, b, b.most(crowd)) })
}

// TestRunOrder: processes get the key in the order of their arrival. They are few, because a process
// that the machine does not run for a second loses its place.
func TestRunOrder(t *testing.T) { everyStore(t, checkRunOrder) }

func checkRunOrder(t *testing.T, b *bench) {
	const inLine = 10
	b.write(t, "count", "0")
	gate := b.start(t, "run", "sum", "--", "sh", "-c", "echo > in; exec sleep 600")
	testkit.Eventually(t, "the first holder", func() bool { return b.read("in") != "" })
	s := b.inspector(t)
	all := make([]*program, inLine)
	for i := range all {
		all[i] = b.section(t, strconv.Itoa(i))
		testkit.Eventually(t, "a place", func() bool { return entry(t, s, "sum").Waiters == i+1 })
	}
	gate.signal(t, syscall.SIGTERM)
	for i, p := range all {
		if code := p.code(t); code != 0 {
			t.Fatalf("process %d exited with %d: %s", i, code, p.stderr.String())
		}
	}
	b.checkSum(t, inLine)
	for i, n := range b.lines("order") {
		if n != strconv.Itoa(i) {
			t.Fatalf("they entered in the order %v", b.lines("order"))
		}
	}
}

// TestRunSomeKilled: a third of sixty processes is killed at random moments. The others
// finish, one at a time, and the key is free at the end.
func TestRunSomeKilled(t *testing.T) { everyStore(t, checkRunSomeKilled) }

func checkRunSomeKilled(t *testing.T, b *bench) {
	const keys = 3
	all := b.most(60)
	// A killed process leaves its file, but it is not alive; nor is a zombie.
	const script = `test -e "in.$1" && ps -o stat= -p "$(cat "in.$1")" | grep -q '^[^Z]' && echo "$2" >> overlaps
echo $$ > "in.$1"; sleep 0.02; echo "$2" >> done; rm "in.$1"`
	programs := make([]*program, all)
	for i := range programs {
		key := strconv.Itoa(i % keys)
		programs[i] = b.start(t, "run", "--lease=3s", key, "--", "sh", "-c", script, "sh", key, strconv.Itoa(i))
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("DIBS_TEST_SEED"); s != "" {
		seed = number(t, s)
	}
	t.Logf("again, in cmd/dibs, with DIBS_TEST_SEED=%d go test -tags nightly -run '%s' ./internal/command", seed, t.Name())
	random := rand.New(rand.NewPCG(seed, 0))
	victims := random.Perm(all)[:all/3]
	for _, i := range victims {
		pause := time.NewTimer(time.Duration(random.Int64N(int64(40 * time.Millisecond))))
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
			t.Errorf("process %d exited with %d: %s", i, code, p.stderr.String())
		}
	}
	if len(late) > 0 {
		t.Logf("%d processes have lost their leases, the first one so: %s", len(late), programs[late[0]].stderr.String())
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

// TestRunStuckInTime: if the store cannot be reached, the command gets TERM more than two
// seconds before the lease expires.
func TestRunStuckInTime(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		checkStuckInTime(t, b, func() (unstick func()) { return lockWriters(t, b.path("dibs.db")) })
	})
	for name, trouble := range map[string]func(*servertest.RedisServer) (unstick func()){
		"redis hangs":   func(s *servertest.RedisServer) func() { s.Pause(); return s.Continue },
		"redis is gone": func(s *servertest.RedisServer) func() { s.Kill(); return s.Restart },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t, nil)
			b := &bench{dir: t.TempDir(), store: server.URL()}
			checkStuckInTime(t, b, func() func() { return trouble(server) })
		})
	}
}

func checkStuckInTime(t *testing.T, b *bench, stick func() (unstick func())) {
	if after := stickStore(t, b, killLease, stick); after > killLease {
		t.Errorf("the command was asked to end %v after the store was stuck; the lease is %v", after, killLease)
	}
}
