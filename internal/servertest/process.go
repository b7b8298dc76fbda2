//go:build unix

package servertest

import (
	"errors"
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
}

// A process is a running server: the leader of a process group of its own, so
// that an interrupt from the keyboard reaches the test and not the server, and
// a signal for the server reaches its children.
type process struct {
	pid     int
	exited  chan struct{}
	outcome string // "exit status 1", "signal: killed"; read after exited
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
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	dieWithParent(cmd.SysProcAttr)
	started := make(chan error)
	starts() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, err
	}
	p := &process{pid: cmd.Process.Pid, exited: make(chan struct{})}
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

// signal sends a signal to the process and its children. A process that has
// ended is no error.
func (p *process) signal(sig syscall.Signal) error {
	if p.gone() {
		return nil
	}
	if err := syscall.Kill(-p.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return os.NewSyscallError("kill", err)
	}
	return nil
}

// kill ends the process at once and waits for its end.
func (p *process) kill() error {
	err := p.signal(syscall.SIGKILL)
	if err == nil {
		<-p.exited
	}
	return err
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
