package torture

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// process is one restarts of a worker.
type process struct {
	cmd      *exec.Cmd
	restarts int
	out      *sender
	said     *os.File
	tail     tail // what it wrote to its standard error last

	ready   chan struct{} // closed when it works
	noCrash chan struct{} // closed when it does nothing to itself any more
	swept   chan struct{} // closed when it has had every key in the calm
	done    chan struct{} // closed when it is gone and all that it said was heard

	asked   atomic.Bool // it was told to end
	struck  atomic.Bool // it was killed by the runner
	copied  sync.WaitGroup
	crashed string        // where it said that it kills itself; the listener's, until done
	crashAt time.Duration // when it said so
}

// self returns the command that makes a worker: this program.
func self() ([]string, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("this program does not know its own file, and cannot start itself as a worker: %w", err)
	}
	return []string{program, workerArg}, nil
}

// startProcess starts a worker whose history goes to the file.
func startProcess(command []string, file string) (p *process, err error) {
	to, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	p = &process{
		cmd:   exec.Command(command[0], command[1:]...),
		ready: make(chan struct{}), noCrash: make(chan struct{}), swept: make(chan struct{}), done: make(chan struct{}),
	}
	p.cmd.Stderr, p.cmd.WaitDelay = &p.tail, time.Second
	tie(p.cmd)
	// Pipes of our own: what was said before a death is read after it.
	from, history, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, to.Close())
	}
	defer history.Close()
	said, out, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, to.Close(), from.Close())
	}
	defer out.Close()
	p.said, p.cmd.Stdout, p.cmd.ExtraFiles = said, out, []*os.File{history}
	in, err := p.cmd.StdinPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(err, to.Close(), from.Close(), said.Close())
	}
	p.out = newSender(in)
	p.copied.Go(func() {
		_, _ = io.Copy(to, from) // whoever checks the file finds out what is missing
		_, _ = to.Close(), from.Close()
	})
	return p, nil
}

// receive hands over what the process says, until it is gone.
func (p *process) receive(handle func(*message)) {
	words := json.NewDecoder(p.said)
	for {
		var m message
		if err := words.Decode(&m); err != nil {
			break
		}
		handle(&m)
	}
	p.said.Close()
	p.copied.Wait()
	_ = p.cmd.Wait() // its state says it all
}

// last is what the process said last, for people.
func (p *process) last() string {
	state := "it runs"
	if p.gone() {
		state = p.cmd.ProcessState.String()
	}
	return strings.TrimSpace(state + "\n" + p.tail.String())
}

// gone reports whether the process has ended.
func (p *process) gone() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// isReady reports whether the process works.
func (p *process) isReady() bool {
	select {
	case <-p.ready:
		return !p.gone()
	default:
		return false
	}
}

func (p *process) kill() { _ = p.cmd.Process.Kill() }

// tail is an io.Writer that keeps what came last.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailSize = 8 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-tailSize):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}

// killed reports whether the process was ended by SIGKILL. It is gone.
func (p *process) killed() bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// stopLimit is how long a process may take to stand still.
const stopLimit = time.Second

// stop stops the process, and reports whether it stands still.
func (p *process) stop() (bool, error) {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return false, nil // it is gone
	}
	for end := time.Now().Add(stopLimit); time.Now().Before(end); time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil {
			return false, nil
		}
		// The name in the second field may have anything in it but what comes after.
		if _, rest, ok := strings.Cut(string(stat), ") "); ok && strings.HasPrefix(rest, "T") {
			return true, nil
		}
	}
	return false, nil
}

// goOn lets it go on.
func (p *process) goOn() error {
	_ = p.cmd.Process.Signal(syscall.SIGCONT) // it may be gone
	return nil
}
