// Package failpoint stops a child process at a named point, so that a test can kill it
// exactly there, without guessing times.
//
// The child is usually the test binary itself. It calls Reach where it may be killed:
//
//	failpoint.Reach("before COMMIT")
//	err := tx.Commit(ctx)
//	failpoint.Reach("after COMMIT")
//
// The parent starts it with the name of one point, and kills it there:
//
//	child := failpoint.Start(t, "before COMMIT", exec.Command(os.Args[0]))
//	child.Await()
//	child.Kill()
package failpoint

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// Limit bounds every wait in a test.
const Limit = time.Minute

// point is the variable with the name of a child's point. The child reports the point on
// descriptor 3.
const (
	point = "DIBS_FAILPOINT"
	pipe  = 3
)

// Reach does nothing, except in a child that was started with this point. There it
// reports to the parent and never returns. The child's other goroutines go on.
func Reach(name string) {
	if os.Getenv(point) != name || name == "" {
		return
	}
	report()
	for {
		time.Sleep(time.Hour) // an empty select could be reported as a deadlock
	}
}

// report reports once, from any number of goroutines.
var report = sync.OnceFunc(func() {
	if _, err := fmt.Fprintln(os.NewFile(pipe, "failpoint"), "reached"); err != nil {
		fmt.Fprintln(os.Stderr, "failpoint: cannot report to the parent:", err)
		os.Exit(2)
	}
})

// Child is a process that stops at a point.
type Child struct {
	t       testing.TB
	name    string
	cmd     *exec.Cmd
	reached chan bool // gets true at the point, or false at the end of the process
	waited  func() error
}

// Start starts the command as a child that stops at the point with that name; "": at
// none. If the child still runs at the end of the test, it is killed.
func Start(t testing.TB, name string, cmd *exec.Cmd) *Child {
	t.Helper()
	if len(cmd.ExtraFiles) > 0 {
		t.Fatal("failpoint: the command has extra files, but the pipe must be the first one")
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, point+"="+name)
	cmd.ExtraFiles = []*os.File{w}
	if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	err = cmd.Start()
	w.Close()
	if err != nil {
		r.Close()
		t.Fatal(err)
	}
	c := &Child{t: t, name: name, cmd: cmd, reached: make(chan bool, 1), waited: sync.OnceValue(cmd.Wait)}
	go func() {
		line, _ := bufio.NewReader(r).ReadString('\n')
		r.Close()
		c.reached <- strings.TrimSpace(line) == "reached"
	}()
	t.Cleanup(c.Kill)
	return c
}

// Await returns when the child has stopped at its point. It fails the test if the child
// ends first, or after Limit.
func (c *Child) Await() {
	c.t.Helper()
	select {
	case ok := <-c.reached:
		if !ok {
			c.t.Fatalf("the child ended before it reached %q", c.name)
		}
	case <-time.After(Limit):
		c.t.Fatalf("the child has not reached %q after %v", c.name, Limit)
	}
}

// Kill ends the child with SIGKILL, as a power failure does, and waits for its end.
func (c *Child) Kill() {
	_ = c.cmd.Process.Kill()
	_ = c.Wait()
}

// Wait waits until the child ends by itself.
func (c *Child) Wait() error { return c.waited() }
