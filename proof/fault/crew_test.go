//go:build nightly

package fault_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/mysqlstore"
	"github.com/dibs-go/dibs/pgstore"
	"github.com/dibs-go/dibs/proof/fault"
	"github.com/dibs-go/dibs/proof/history"
	"github.com/dibs-go/dibs/redisstore"
	"github.com/dibs-go/dibs/sqlitestore"
)

// workerURL is the environment variable that makes the test binary a worker.
const workerURL = "DIBS_FAULT_WORKER"

func TestMain(m *testing.M) {
	if url := os.Getenv(workerURL); url != "" {
		work(url)
		return
	}
	flag.Parse()
	// The tests wait for processes, far more than they work.
	if err := flag.Set("test.parallel", strconv.Itoa(max(8, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// ttl is how long the workers' leases last.
const ttl = 500 * time.Millisecond

// work uses the store until standard input ends, and says on standard output what happens:
// "did" for a section that was left in order, "lost" for a lease that was lost, "fail" and a
// text for an error of the store's.
func work(url string) {
	signal.Ignore(syscall.SIGXFSZ) // a Go program dies of it otherwise
	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " "))
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	store, closeStore, err := openStore(ctx, url)
	for err != nil && ctx.Err() == nil {
		say("fail %v", err)
		time.Sleep(20 * time.Millisecond)
		store, closeStore, err = openStore(ctx, url)
	}
	if ctx.Err() != nil {
		return
	}
	recorded := history.Record(store, history.NewWriter(io.Discard, 1, 1), func(err error) {
		if !errors.Is(err, dibs.ErrLost) {
			say("fail %v", err)
		}
	})
	client, err := dibs.New(recorded, &dibs.Options{Namespace: "fault", TTL: ttl, Wait: ttl, Timeout: ttl})
	if err != nil {
		say("fail %v", err)
		return
	}
	var hands sync.WaitGroup
	for range 2 {
		hands.Go(func() {
			for ctx.Err() == nil {
				lease, err := client.Acquire(ctx, fmt.Sprint("key", rand.N(9)), nil)
				if err != nil {
					continue // the recorder has said it
				}
				work := time.NewTimer(rand.N(ttl))
				select {
				case <-lease.Context().Done():
				case <-work.C:
				}
				if errors.Is(lease.Err(), dibs.ErrLost) {
					say("lost")
				}
				if err := lease.Release(); err == nil {
					say("did")
				}
			}
		})
	}
	hands.Wait()
	_ = client.Close() // what is left runs out
	_ = closeStore()
}

func openStore(ctx context.Context, url string) (dibs.Store, func() error, error) {
	scheme, rest, _ := strings.Cut(url, ":")
	switch scheme {
	case "redis", "redis+sentinel", "redis+cluster":
		s, err := redisstore.Open(ctx, url, nil)
		return s, s.Close, err
	case "postgres":
		s, err := pgstore.Open(ctx, url, nil)
		return s, s.Close, err
	case "mysql":
		s, err := mysqlstore.Open(ctx, url, nil)
		return s, s.Close, err
	}
	path, _, shared := strings.Cut(rest, "?")
	s, err := sqlitestore.Open(path, &sqlitestore.Options{Shared: shared})
	return s, s.Close, err
}

// crew is worker processes. It implements fault.Workers.
type crew struct {
	t    *testing.T
	urls []string

	mu      sync.Mutex
	members []*member
	failed  []string
	over    bool
}

// member is the process of a worker, and what all its lives told.
type member struct {
	cmd   *exec.Cmd
	stdin io.Closer
	gone  chan struct{} // closed when the process is
	lost  int
	did   int
}

// newCrew starts n workers for the target, with wires if there can be any, and waits until
// each of them has done something.
func newCrew(t *testing.T, target *fault.Target, n int) *crew {
	t.Helper()
	c := &crew{t: t, members: make([]*member, n)}
	var err error
	if target.Wires, c.urls, err = fault.Through(target.URL, n); err != nil {
		for range n {
			c.urls = append(c.urls, target.URL)
		}
	}
	target.Workers, target.TTL = c, ttl
	for i := range n {
		c.members[i] = &member{}
		if err := c.start(i, nil); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		c.mu.Lock()
		c.over = true
		c.mu.Unlock()
		for _, m := range c.members {
			m.stdin.Close()
			select {
			case <-m.gone:
			case <-time.After(10 * time.Second):
				t.Error("a worker does not end when it is asked to")
				_ = m.cmd.Process.Kill() // it may have ended this moment
				<-m.gone
			}
		}
		for _, w := range target.Wires {
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	c.awaitProgress("at the start")
	return c
}

func (c *crew) start(i int, before []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	argv := append(before[:len(before):len(before)], self)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), workerURL+"="+c.urls[i])
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	gone := make(chan struct{})
	c.mu.Lock()
	c.members[i].cmd, c.members[i].stdin, c.members[i].gone = cmd, stdin, gone
	c.mu.Unlock()
	go func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			c.heard(i, lines.Text())
		}
		_ = cmd.Wait() // how it ended is in its state
		close(gone)
	}()
	return nil
}

func (c *crew) heard(i int, line string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch text, failed := strings.CutPrefix(line, "fail "); {
	case failed:
		c.failed = append(c.failed, strings.ToLower(text))
	case line == "lost":
		c.members[i].lost++
	default:
		c.members[i].did++
	}
}

func (c *crew) member(i int) (cmd *exec.Cmd, stdin io.Closer, gone chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[i]
	return m.cmd, m.stdin, m.gone
}

func (c *crew) Len() int { return len(c.members) }

func (c *crew) PID(i int) int {
	cmd, _, gone := c.member(i)
	select {
	case <-gone:
		return 0
	default:
		return cmd.Process.Pid
	}
}

func (c *crew) Kill(i int) (bool, error) {
	cmd, _, gone := c.member(i)
	if err := cmd.Process.Kill(); err != nil {
		return false, err
	}
	<-gone
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return status.Signaled() && status.Signal() == syscall.SIGKILL, c.start(i, nil)
}

func (c *crew) Stop(ctx context.Context, i int, d time.Duration) (bool, error) {
	cmd, _, _ := c.member(i)
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return false, err
	}
	pause := time.NewTimer(d)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
	return strings.Contains(string(stat), ") T "), cmp.Or(err, cmd.Process.Signal(syscall.SIGCONT))
}

func (c *crew) Restart(i int, before []string) error {
	_, stdin, gone := c.member(i)
	stdin.Close()
	<-gone
	return c.start(i, before)
}

func (c *crew) Lost(i int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.members[i].lost
}

func (c *crew) Failed(text string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.failed {
		if strings.Contains(f, strings.ToLower(text)) {
			n++
		}
	}
	return n
}

// awaitProgress returns when every worker has done something from now on.
func (c *crew) awaitProgress(when string) {
	c.t.Helper()
	done := func() (all []int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, m := range c.members {
			all = append(all, m.did)
		}
		return all
	}
	before := done()
	deadline := time.Now().Add(time.Minute)
	for i := range before {
		for done()[i] <= before[i] {
			if time.Now().After(deadline) {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.t.Fatalf("%s, worker %d does nothing any more; the last errors: %q", when, i, c.failed[max(0, len(c.failed)-5):])
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}
