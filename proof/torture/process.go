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

// process is one process of a worker.
type process struct {
	cmd      *exec.Cmd
	restarts int
	out      *sender
	messages *os.File
	tail     tail // of its standard error

	ready   chan struct{} // closed when it works
	noCrash chan struct{} // closed when it does not crash any more
	swept   chan struct{} // closed when it has acquired every key after the faults
	done    chan struct{} // closed when it has ended and its messages are handled

	asked   atomic.Bool // the runner asked it to end
	struck  atomic.Bool // the runner killed it
	copied  sync.WaitGroup
	crashed string        // where it crashes; receive's, until done
	crashAt time.Duration // when
}

// self returns the command that starts a worker: this program.
func self() ([]string, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("this program does not know its own file, and cannot start itself as a worker: %w", err)
	}
	return []string{program, workerArg}, nil
}

// startProcess starts a worker. Its history goes to the file.
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
	// Pipes of our own, because what was written before a kill must be read after it.
	from, history, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, to.Close())
	}
	defer history.Close()
	messages, out, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, to.Close(), from.Close())
	}
	defer out.Close()
	p.messages, p.cmd.Stdout, p.cmd.ExtraFiles = messages, out, []*os.File{history}
	in, err := p.cmd.StdinPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(err, to.Close(), from.Close(), messages.Close())
	}
	p.out = newSender(in)
	p.copied.Go(func() {
		_, _ = io.Copy(to, from) // the check finds what is missing
		_, _ = to.Close(), from.Close()
	})
	return p, nil
}

// receive handles the messages of the process until it ends.
func (p *process) receive(handle func(*message)) {
	words := json.NewDecoder(p.messages)
	for {
		var m message
		if err := words.Decode(&m); err != nil {
			break
		}
		handle(&m)
	}
	p.messages.Close()
	p.copied.Wait()
	_ = p.cmd.Wait()
}

// last describes how the process ended, and what it wrote to its standard error last.
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

// tail is an io.Writer that keeps the last bytes.
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

// killed reports whether SIGKILL ended the process. The process must have ended.
func (p *process) killed() bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// stopLimit is how long it may take until a process is stopped.
const stopLimit = time.Second

// stop stops the process, and reports whether it is stopped.
func (p *process) stop() (bool, error) {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return false, nil // it has ended
	}
	for end := time.Now().Add(stopLimit); time.Now().Before(end); time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil {
			return false, nil
		}
		// The second field is the name, which may contain any text.
		if _, rest, ok := strings.Cut(string(stat), ") "); ok && strings.HasPrefix(rest, "T") {
			return true, nil
		}
	}
	return false, nil
}

// resume lets a stopped process go on.
func (p *process) resume() error {
	_ = p.cmd.Process.Signal(syscall.SIGCONT) // it may have ended
	return nil
}
