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
	"strings"
	"sync"
	"syscall"
	"time"
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
	if e.Code == CodeNotFound && strings.ContainsAny(e.Name, " ;|&") {
		return fmt.Sprintf("%s: command not found, because all of this is one word: leave out the quotes, or write sh -c before them", e.Name)
	}
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
	stops    chan syscall.Signal
	reaps    bool // the orphans of the command become children of this program

	mu     sync.Mutex // guards waiting for the command
	ended  bool
	status syscall.WaitStatus
}

// Start starts the command. It returns a *StartError if the program cannot be started.
//
// If this program is in the foreground of its terminal, the command gets the foreground, unless it
// is a part of a pipeline: then it gets it when it wants to read or to set the terminal.
func Start(c Command) (*Process, error) {
	w, err := startWatchdog()
	if err != nil {
		return nil, fmt.Errorf("the watchdog did not start: %w", err)
	}
	p := &Process{watchdog: w, exited: make(chan struct{})}
	if p.terminal = openTerminal(w.group); p.terminal != nil {
		p.stops = make(chan syscall.Signal, 1)
	}
	p.cmd = exec.Command(c.Args[0], c.Args[1:]...) //nolint:noctx // ended by its group, see End
	p.cmd.Err = nil                                // because the caller may name a program in the current folder
	p.cmd.Env = c.Env
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: w.group}
	p.reaps = adopt()
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGCHLD)
	if !piped(c.Stdin) && !piped(c.Stdout) {
		p.terminal.give()
	}
	p.terminal.listenEarly()
	if err := p.cmd.Start(); err != nil {
		signal.Stop(changes)
		p.terminal.close(0)
		w.dismiss()
		return nil, startError(c.Args[0], err)
	}
	p.terminal.listen()
	go p.wait(changes)
	return p, nil
}

// piped reports whether a stream of the command is a pipe, so that another process of a pipeline
// may use the terminal at the same time.
func piped(stream any) bool {
	file, ok := stream.(*os.File)
	if !ok {
		return true
	}
	info, err := file.Stat()
	return err != nil || info.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) != 0
}

// wait waits for the end of the command. changes receives SIGCHLD.
func (p *Process) wait(changes chan os.Signal) {
	defer close(p.exited)
	defer signal.Stop(changes)
	for !p.collect() {
		<-changes
	}
	_ = p.cmd.Wait() // the command is gone; its output may have to be copied
}

// collect notes that the command has stopped, reaps the orphans that have ended, and reports
// whether the command has ended.
func (p *Process) collect() (ended bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		command := p.cmd.Process.Pid
		child := command
		if p.reaps {
			// Any child. A watchdog that was killed may be reaped: no process gets its number
			// while the group has a member.
			child = -1
		} else if p.ended {
			return true
		}
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(child, &status, syscall.WNOHANG|syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil && !p.ended:
			p.ended, p.status = true, 126<<8 // nobody knows how it ended, so it is not a success
			return true
		case err != nil || pid == 0:
			return p.ended
		case pid != command:
		case !status.Stopped():
			p.ended, p.status = true, status
		default:
			select {
			case p.stops <- status.StopSignal():
			default: // there is no terminal
			}
		}
	}
}

// Exited is closed when the command itself has ended. Other processes of its group may
// still run.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Code returns the exit code after Exited: the command's own, or 128+n if signal n killed
// it.
func (p *Process) Code() int {
	if p.status.Signaled() {
		return 128 + int(p.status.Signal())
	}
	return p.status.ExitStatus()
}

// killedBy returns the signal that killed the command, or 0.
func (p *Process) killedBy() syscall.Signal {
	if p.status.Signaled() {
		return p.status.Signal()
	}
	return 0
}

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
	defer func() { p.terminal.close(p.killedBy()) }()
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
func (p *Process) Leave() {
	p.terminal.close(p.killedBy())
	p.watchdog.dismiss()
}

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

// empty reports whether no process of the group lives. The watchdog has left it.
func (p *Process) empty() bool {
	select {
	case <-p.exited:
	default:
		return false // the command may be a zombie that is not collected yet
	}
	p.collect()
	if errors.Is(syscall.Kill(-p.watchdog.group, 0), syscall.ESRCH) {
		return true
	}
	if !onlyZombies(p.watchdog.group) {
		return false
	}
	_ = p.Signal(syscall.SIGKILL) // because a process that began during the look was not seen
	return true
}
