package redisstore

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs"
)

// children are what this test binary does when it is started as another process
// with the variable childVar set. They end when their standard input does.
var children = map[string]func(url string, input io.Reader) error{
	"wait":    childWait,
	"waiters": childWaiters,
}

const (
	childVar = "REDISSTORE_TEST_CHILD"
	urlVar   = "REDISSTORE_TEST_URL"
)

// waitedFor is the key that children wait for.
const waitedFor = "waited for"

// waitersOfProcess is how many waiters one process has.
const waitersOfProcess = 5

// childWait waits for its turn, says what it got, and holds it to its end.
func childWait(url string, input io.Reader) error {
	c, done, err := childClient(url)
	if err != nil {
		return err
	}
	defer done()
	lease, err := c.Acquire(context.Background(), waitedFor, nil)
	if err != nil {
		return err
	}
	fmt.Println("granted", lease.Fence(), lease.Attempt())
	if _, err := io.Copy(io.Discard, input); err != nil {
		return err
	}
	return lease.Release()
}

// childWaiters waits many times. It is meant to be killed.
func childWaiters(url string, input io.Reader) error {
	c, done, err := childClient(url)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range waitersOfProcess {
		all.Go(func() {
			if lease, err := c.Acquire(ctx, waitedFor, nil); err == nil {
				_ = lease.Release()
			}
		})
	}
	_, err = io.Copy(io.Discard, input)
	cancel()
	all.Wait()
	return err
}

func childClient(url string) (c *dibs.Client, done func(), err error) {
	s, err := Open(context.Background(), url, &Options{patience: limit})
	if err != nil {
		return nil, nil, err
	}
	c, err = dibs.New(s, &dibs.Options{Namespace: "test", Timeout: limit})
	return c, func() { _, _ = c.Close(), s.Close() }, err
}

// process is a child.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	input  io.Closer
	errors bytes.Buffer
	lines  chan string // what it says
}

// start starts a child, which is killed at the latest when the test ends.
func start(t *testing.T, child, url string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(os.Args[0]), lines: make(chan string, 16)}
	p.cmd.Env = append(os.Environ(), childVar+"="+child, urlVar+"="+url,
		"GORACE=atexit_sleep_ms=0") // the race detector makes every exit last a second
	p.cmd.Stderr = &p.errors
	input, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.input = input
	output, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(p.lines)
		for s := bufio.NewScanner(output); s.Scan(); {
			p.lines <- s.Text()
		}
	})
	t.Cleanup(func() {
		p.kill()
		reading.Wait()
	})
	return p
}

// says returns the next line that the child says.
func (p *process) says() string {
	p.t.Helper()
	line := await(p.t, "what the child says", p.lines)
	if line == "" {
		p.t.Fatalf("the child ended: %s", &p.errors)
	}
	return line
}

// signal sends the child a signal.
func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// end lets the child finish what it does.
func (p *process) end() {
	p.t.Helper()
	if err := p.input.Close(); err != nil {
		p.t.Error(err)
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("the child ended with %v: %s", err, &p.errors)
	}
}

// kill ends the child at once, if it has not ended.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}
