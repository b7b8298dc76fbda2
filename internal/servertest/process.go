//go:build unix

package servertest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// A command says how a server is started.
type command struct {
	path string
	// args begins with the name the program is to see as its own, which for
	// some decides what they are.
	args []string
	dir  string
	env  []string // nil: that of the test
	log  string   // the file that its output is appended to
	as   *account // nil: the user of the test
	// family says that the program's children leave its process group.
	family bool
}

// A process is a running server: the leader of a process group of its own, so
// that an interrupt from the keyboard reaches the test and not the server, and
// a signal for the server reaches its children, unless they have left it.
type process struct {
	pid     int
	family  bool
	exited  chan struct{}
	outcome string // "exit status 1", "signal: killed"; read after exited
	watch   *watch // over the children of a process that is paused
}

// start starts the program. It ends when this process does, whatever ends it.
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
		_ = cmd.Wait() // how it ended is in its state
		p.outcome = cmd.ProcessState.String()
		close(p.exited)
	}()
	return p, nil
}

// starts is served by a thread that lives as long as the process. The kernel
// ends a child when the thread that started it ends, not the process, and Go
// ends threads as it likes unless they are locked.
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

// signal sends a signal to the process and to the children in its group. A
// process that has ended is no error.
func (p *process) signal(sig syscall.Signal) error {
	if p.gone() {
		return nil
	}
	return send(-p.pid, sig)
}

// pause stops the process with its children where they are, and returns when
// they have stopped.
func (p *process) pause() error {
	children, err := p.freeze()
	if err != nil || len(children) == 0 {
		return err
	}
	// The kernel ends the process with the test, but not its children, and
	// those that are stopped do not notice that it has ended.
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

// resume lets what is paused go on.
func (p *process) resume() error {
	if p.family && !p.gone() {
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

// kill ends the process and its children at once and waits for their end.
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

// freeze stops the process itself, and returns the children that it then has
// outside of its group: there will be no more.
func (p *process) freeze() ([]int, error) {
	if p.gone() {
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

// gone reports whether the process has ended.
func (p *process) gone() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// send sends a signal to a process, or to a group by its negative number. One
// that has ended is no error.
func send(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return os.NewSyscallError("kill", err)
	}
	return nil
}

// Freeze stops a process of the test's own where it is (SIGSTOP), and returns when
// nothing of it goes on: what it sent before may still be under way.
func Freeze(t Owner, p *os.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatalf("stopping process %d: %v", p.Pid, err)
	}
	if err := awaitStop(p.Pid); err != nil {
		t.Fatalf("%v", err)
	}
}

// awaitStop returns when a process that was sent SIGSTOP has stopped: the signal
// is sent before the process notices.
func awaitStop(pid int) error {
	return await(func() error {
		if stopped(pid) {
			return nil
		}
		return fmt.Errorf("process %d does not stop", pid)
	})
}

// awaitEnd returns when a process that is no child of ours has ended.
func awaitEnd(pid int) error {
	return await(func() error {
		if ended(pid) {
			return nil
		}
		return fmt.Errorf("process %d does not end", pid)
	})
}
