// Package failpoint stops a child process at a named point, so that a test can
// kill it exactly there. No test has to guess how long something takes.
//
// The child is usually the test binary itself. It calls Reach where it could be
// killed:
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

// Limit is how long anything in a test may take before the test says that it hangs.
const Limit = time.Minute

// point is the variable that names where a child stops. It says so on descriptor 3.
const (
	point = "DIBS_FAILPOINT"
	pipe  = 3
)

// Reach does nothing, except in a child that was started to stop at this point: there
// it tells the parent, and never returns. The other goroutines of the child go on.
func Reach(name string) {
	if os.Getenv(point) != name || name == "" {
		return
	}
	report()
	for {
		time.Sleep(time.Hour) // an empty select would be a deadlock where nothing else goes on
	}
}

// report tells the parent once, however many goroutines arrive.
var report = sync.OnceFunc(func() {
	if _, err := fmt.Fprintln(os.NewFile(pipe, "failpoint"), "reached"); err != nil {
		fmt.Fprintln(os.Stderr, "failpoint: cannot tell the parent:", err)
		os.Exit(2)
	}
})

// Child is a process that stops at a point.
type Child struct {
	t       testing.TB
	name    string
	cmd     *exec.Cmd
	reached chan bool // gets whether the point was reached before the process ended
	waited  func() error
}

// Start starts the command as a child that stops at the point with that name; "" is
// none. The child is killed when the test ends, if it still runs.
func Start(t testing.TB, name string, cmd *exec.Cmd) *Child {
	t.Helper()
	if len(cmd.ExtraFiles) > 0 {
		t.Fatal("failpoint: the command has extra files, and the pipe has to be the first one")
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

// Await returns when the child has stopped at its point. The test ends if the child
// ends without, or does not get there.
func (c *Child) Await() {
	c.t.Helper()
	select {
	case ok := <-c.reached:
		if !ok {
			c.t.Fatalf("the child ended before it reached %q", c.name)
		}
	case <-time.After(Limit):
		c.t.Fatalf("the child has not reached %q after %v: it hangs", c.name, Limit)
	}
}

// Kill ends the child with SIGKILL, as when its host loses power, and returns when it
// is dead.
func (c *Child) Kill() {
	_ = c.cmd.Process.Kill()
	_ = c.Wait()
}

// Wait waits for the child's own end.
func (c *Child) Wait() error { return c.waited() }
