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
//	child := failpoint.Start(t, "before COMMIT", testkit.Child("commit"))
//	child.Await()
//	child.Kill()
package failpoint

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

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
	*os.Process

	t      testing.TB
	name   string
	point  said      // where it reports its point
	output said      // its standard output, unless the command had one
	input  io.Closer // its standard input, unless the command had one
	waited func() error
}

// Start starts the command as a child that stops at the point with that name; "": at
// none. If the child still runs at the end of the test, it is killed. The parent has the child's
// standard input and output, unless the command has some of its own.
func Start(t testing.TB, name string, cmd *exec.Cmd) *Child {
	t.Helper()
	if len(cmd.ExtraFiles) > 0 {
		t.Fatal("failpoint: the command has extra files, but the pipe must be the first one")
	}
	c := &Child{t: t, name: name, waited: sync.OnceValue(cmd.Wait)}
	reports := c.point.pipe(t)
	defer reports.Close()
	cmd.ExtraFiles = []*os.File{reports}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, point+"="+name)
	if cmd.Stdin == nil {
		input, err := cmd.StdinPipe()
		testkit.Must(t, err)
		c.input = input
	}
	if cmd.Stdout == nil {
		output := c.output.pipe(t)
		defer output.Close()
		cmd.Stdout = output
	}
	if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	testkit.Must(t, cmd.Start())
	c.Process = cmd.Process
	t.Cleanup(c.Kill)
	return c
}

// Await returns when the child has stopped at its point. It ends the test if the child
// ends first, or after testkit.Limit.
func (c *Child) Await() {
	c.t.Helper()
	if line, err := c.point.next(); line != "reached" {
		c.t.Fatalf("the child has not reached %q: %q, %v", c.name, line, err)
	}
}

// Says returns the next line of the child's standard output. It ends the test if the child ends
// first, or after testkit.Limit.
func (c *Child) Says() string {
	c.t.Helper()
	line, err := c.output.next()
	if err != nil {
		c.t.Fatalf("the child said %q: %v", line, err)
	}
	return line
}

// End closes the child's standard input and waits until the child ends by itself, without an
// error.
func (c *Child) End() {
	c.t.Helper()
	if err := c.input.Close(); err != nil {
		c.t.Error(err)
	}
	if err := c.Wait(); err != nil {
		c.t.Errorf("the child ended with %v", err)
	}
}

// Kill ends the child with SIGKILL, as a power failure does, and waits for its end.
func (c *Child) Kill() {
	_ = c.Process.Kill()
	_ = c.Wait()
}

// Wait waits until the child ends by itself.
func (c *Child) Wait() error { return c.waited() }

// said is what a child writes to a pipe, by line.
type said struct {
	from  *os.File
	lines *bufio.Reader
}

// pipe returns the child's end, which is to be closed when the child has it.
func (s *said) pipe(t testing.TB) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	testkit.Must(t, err)
	t.Cleanup(func() { _ = r.Close() })
	s.from, s.lines = r, bufio.NewReader(r)
	return w
}

func (s *said) next() (line string, err error) {
	if err := s.from.SetReadDeadline(time.Now().Add(testkit.Limit)); err != nil {
		return "", err
	}
	line, err = s.lines.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}
