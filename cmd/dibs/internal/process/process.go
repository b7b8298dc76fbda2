//go:build unix

// Package process runs a command in its own process group, and passes signals on to the
// group. No process of the group outlives the program that started it, however that
// program ends.
//
// A watchdog leads the group: the same program, started again. The command joins the
// group. The watchdog reads from a pipe of the program. If the pipe closes without a
// message, because the program was killed, the watchdog kills the group and itself. So the
// command never runs without a watchdog.
package process

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Command is a command and its surroundings.
type Command struct {
	Args   []string // the program, looked up in PATH, and its arguments
	Env    []string // the whole environment
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
}

// The exit codes of a command that could not be run, as shells have them
// (POSIX.1-2024, Shell Command Language, 2.8.2).
const (
	CodeNotExecutable = 126
	CodeNotFound      = 127
)

// StartError says that the command could not be started.
type StartError struct {
	Name string
	Code int // CodeNotFound or CodeNotExecutable
	Err  error
}

func (e *StartError) Error() string {
	if e.Code == CodeNotFound {
		return fmt.Sprintf("%s: command not found", e.Name)
	}
	return fmt.Sprintf("%s: cannot be executed: %v", e.Name, e.Err)
}

// Unwrap returns what the system said.
func (e *StartError) Unwrap() error { return e.Err }

// Look returns a *StartError if the command's program does not exist or cannot be executed.
func (c Command) Look() error {
	_, err := exec.LookPath(c.Args[0])
	return startError(c.Args[0], err)
}

func startError(name string, err error) error {
	switch {
	case err == nil || errors.Is(err, exec.ErrDot):
		return nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return &StartError{Name: name, Code: CodeNotFound, Err: err}
	}
	return &StartError{Name: name, Code: CodeNotExecutable, Err: err}
}

// Process is a command after Start.
type Process struct {
	cmd      *exec.Cmd
	watchdog *watchdog
	terminal *terminal
	exited   chan struct{}
	code     int
}

// Start starts the command. It returns a *StartError if the program cannot be started.
func Start(c Command) (*Process, error) {
	w, err := startWatchdog()
	if err != nil {
		return nil, fmt.Errorf("the watchdog did not start: %w", err)
	}
	p := &Process{watchdog: w, exited: make(chan struct{})}
	p.cmd = exec.Command(c.Args[0], c.Args[1:]...) //nolint:noctx // ended by its group, see End
	p.cmd.Err = nil                                // because the caller may name a program in the current folder
	p.cmd.Env = c.Env
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: w.group}
	if p.terminal = foreground(c.Stdin); p.terminal != nil {
		p.cmd.SysProcAttr.Foreground = true
		p.cmd.SysProcAttr.Ctty = p.terminal.fd
	}
	if err := p.cmd.Start(); err != nil {
		p.terminal.takeBack()
		w.dismiss()
		return nil, startError(c.Args[0], err)
	}
	go func() {
		defer close(p.exited)
		p.code = exitCode(p.cmd.Wait())
		p.terminal.takeBack()
	}()
	return p, nil
}

// exitCode is the command's own, or 128+n if signal n killed it.
func exitCode(err error) int {
	exit, ok := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return 0
	case !ok:
		return 1 // its output could not be copied
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return exit.ExitCode()
}

// Exited is closed when the command itself has ended. Other processes of its group may
// still run.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Code returns the exit code after Exited: the command's own, or 128+n if signal n killed
// it.
func (p *Process) Code() int { return p.code }

// Signal sends a signal to the whole group.
func (p *Process) Signal(s syscall.Signal) error {
	err := syscall.Kill(-p.watchdog.group, s)
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// End ends the rest of the group: TERM, and KILL at the deadline. It returns when the group
// is empty, and reports whether processes were left.
func (p *Process) End(deadline time.Time) bool {
	defer p.watchdog.dismiss()
	if p.watchdog.stepAside() != nil {
		// The watchdog was killed. Kill the group, because nothing watches it now.
		_ = p.Signal(syscall.SIGKILL)
		<-p.exited
		return false
	}
	if p.empty() {
		<-p.exited
		return false
	}
	_ = p.Signal(syscall.SIGTERM)
	_ = p.Signal(syscall.SIGCONT) // because a stopped process cannot end
	if !p.emptyBy(deadline) {
		_ = p.Signal(syscall.SIGKILL)
		p.emptyBy(time.Now().Add(time.Second))
	}
	<-p.exited
	return true
}

// Leave lets the rest of the group go on without a watchdog. Call it after Exited.
func (p *Process) Leave() { p.watchdog.dismiss() }

// emptyBy waits until the group is empty, and reports whether it is at the deadline.
func (p *Process) emptyBy(deadline time.Time) bool {
	for pause := time.Millisecond; !p.empty(); pause = min(2*pause, 20*time.Millisecond) {
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		time.Sleep(min(pause, left))
	}
	return true
}

// empty reports whether the group has no process. The watchdog has left it.
func (p *Process) empty() bool {
	select {
	case <-p.exited:
	default:
		return false // the command may be a zombie, which counts as a member
	}
	return errors.Is(syscall.Kill(-p.watchdog.group, 0), syscall.ESRCH)
}

// terminal is the controlling terminal while the command's group is in its foreground.
type terminal struct {
	fd    int
	group int // was in the foreground before
}

// foreground returns the terminal that is the command's standard input, if this program is
// in its foreground.
func foreground(stdin io.Reader) *terminal {
	file, ok := stdin.(*os.File)
	if !ok {
		return nil
	}
	fd := int(file.Fd())
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	if err != nil || group != syscall.Getpgrp() {
		return nil
	}
	return &terminal{fd: fd, group: group}
}

// takeBack makes this program's group the foreground again.
func (t *terminal) takeBack() {
	if t == nil {
		return
	}
	// SIGTTOU would stop a program that does this from the background.
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	_ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, t.group)
}
