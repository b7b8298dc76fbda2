//go:build unix

package servertest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// A command describes how a server is started.
type command struct {
	path string
	// args begins with the program's own name, by which some programs choose their role.
	args []string
	dir  string
	env  []string // nil: the test's
	log  string   // the file for its output
	as   *account // nil: the user of the test
	// family says that the program's children leave its process group.
	family bool
}

// A process is a running server. It leads its own process group, so that an interrupt
// from the keyboard does not reach it, and signals reach its children in the group.
type process struct {
	pid     int
	family  bool
	exited  chan struct{}
	outcome string // "exit status 1", "signal: killed"; read after exited
	watch   *watch // over the children of a paused process
}

// start starts the program. It ends when this process ends, for any reason.
func start(c command) (*process, error) {
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := &exec.Cmd{
		Path:        c.path,
		Args:        c.args,
		Dir:         c.dir,
		Env:         c.env,
		Stdout:      log,
		Stderr:      log,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Credential: c.as.credential()},
	}
	dieWithParent(cmd.SysProcAttr)
	started := make(chan error)
	starts() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, err
	}
	p := &process{pid: cmd.Process.Pid, family: c.family, exited: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // the state has the outcome
		p.outcome = cmd.ProcessState.String()
		close(p.exited)
	}()
	return p, nil
}

// starts runs functions on a thread that lives as long as the process, because the kernel
// ends a child when the thread that started it ends.
var starts = sync.OnceValue(func() chan<- func() {
	queue := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range queue {
			f()
		}
	}()
	return queue
})

// signal sends a signal to the process and its group. It ignores a process that has
// ended.
func (p *process) signal(sig syscall.Signal) error {
	if p.hasExited() {
		return nil
	}
	return send(-p.pid, sig)
}

// pause stops the process and its children, and returns when they have stopped.
func (p *process) pause() error {
	children, err := p.freeze()
	if err != nil || len(children) == 0 {
		return err
	}
	// The kernel ends the process with the test, but not its children, and stopped
	// children do not notice its end.
	if p.watch == nil {
		if p.watch, err = watchOver(children); err != nil {
			return err
		}
	}
	for _, child := range children {
		if err := send(child, syscall.SIGSTOP); err != nil {
			return err
		}
	}
	for _, child := range children {
		if err := awaitStop(child); err != nil {
			return err
		}
	}
	return nil
}

// resume continues a paused process.
func (p *process) resume() error {
	if p.family && !p.hasExited() {
		children, err := descendants(p.pid)
		if err != nil {
			return err
		}
		for _, child := range children {
			if err := send(child, syscall.SIGCONT); err != nil {
				return err
			}
		}
	}
	p.watch.end()
	p.watch = nil
	return p.signal(syscall.SIGCONT)
}

// kill ends the process and its children and waits for their end.
func (p *process) kill() error {
	children, err := p.freeze()
	if err != nil {
		return err
	}
	for _, child := range children {
		if err := send(child, syscall.SIGKILL); err != nil {
			return err
		}
	}
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.exited
	for _, child := range children {
		if err := awaitEnd(child); err != nil {
			return err
		}
	}
	p.watch.end()
	p.watch = nil
	return nil
}

// freeze stops the process itself, and returns its children outside the group. It cannot
// start more.
func (p *process) freeze() ([]int, error) {
	if p.hasExited() {
		return nil, nil
	}
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	if err := awaitStop(p.pid); err != nil || !p.family {
		return nil, err
	}
	return descendants(p.pid)
}

// hasExited reports whether the process has ended.
func (p *process) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// send sends a signal to a process, or to a group by its negative number. It ignores a
// process that has ended.
func send(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return os.NewSyscallError("kill", err)
	}
	return nil
}

// Freeze stops a process of the test (SIGSTOP), and returns when it has stopped. What it
// sent before may still be under way.
func Freeze(t Owner, p *os.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatalf("stopping process %d: %v", p.Pid, err)
	}
	if err := awaitStop(p.Pid); err != nil {
		t.Fatalf("%v", err)
	}
}

// awaitStop returns when a process has stopped after SIGSTOP.
func awaitStop(pid int) error {
	return await(func() error {
		if stopped(pid) {
			return nil
		}
		return fmt.Errorf("process %d does not stop", pid)
	})
}

// awaitEnd returns when a process that is not a child of this one has ended.
func awaitEnd(pid int) error {
	return await(func() error {
		if ended(pid) {
			return nil
		}
		return fmt.Errorf("process %d does not end", pid)
	})
}

// A watch ends processes when the test binary ends for any reason: a shell that waits for
// the end of a pipe that only this process holds.
type watch struct {
	shell *exec.Cmd
	pipe  io.Closer
}

// watchOver starts a watch over processes. They must not end before the watch.
func watchOver(pids []int) (*watch, error) {
	var script strings.Builder
	script.WriteString("kill -9")
	for _, pid := range pids {
		script.WriteString(" " + strconv.Itoa(pid))
	}
	return watchScript(script.String())
}

// watchScript starts a watch that runs a script.
func watchScript(script string) (*watch, error) {
	shell := exec.Command("/bin/sh", "-c", "read end; "+script)
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // no signals from the keyboard
	pipe, err := shell.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := shell.Start(); err != nil {
		return nil, fmt.Errorf("start a watch over processes: %w", err)
	}
	return &watch{shell: shell, pipe: pipe}, nil
}

// end ends the watch without ending the processes.
func (w *watch) end() {
	if w == nil {
		return
	}
	_ = w.shell.Process.Kill() // it is a child and was not waited for, so this works
	_ = w.shell.Wait()         // "signal: killed"
	w.pipe.Close()
}
