package demo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// proxyProcess is a dibs proxy in a process of its own.
type proxyProcess struct {
	cmd  *exec.Cmd
	url  string
	logs lockedBuffer
	done chan struct{}
}

// lockedBuffer keeps what a process says until somebody wants to know.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.TrimSpace(b.buf.String())
}

// startLimit is how long a proxy may take to start.
const startLimit = time.Minute

// withStore names the store to a process, in its environment: there may be a
// password in it, and everybody may read its arguments.
func withStore(cmd *exec.Cmd, store string) *exec.Cmd {
	cmd.Env = append(os.Environ(), "DIBS_STORE="+store)
	return cmd
}

// startProxy runs "dibs proxy" with these flags and waits until it serves.
func startProxy(program, store string, flags ...string) (*proxyProcess, error) {
	p := &proxyProcess{done: make(chan struct{})}
	args := append([]string{"proxy", "--listen", "127.0.0.1:0", "--access-log=off"}, flags...)
	p.cmd = withStore(exec.Command(program, args...), store)
	p.cmd.Stderr = &p.logs
	p.cmd.SysProcAttr = ownGroup
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	late := time.AfterFunc(startLimit, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	_, rest, ok := strings.Cut(line, "listening on ")
	if err != nil || !ok {
		<-p.done
		return nil, fmt.Errorf("the proxy did not start: %s", p.logs.String())
	}
	p.url, _, _ = strings.Cut(strings.TrimSpace(rest), ",")
	return p, nil
}

// kill ends the process as a power cut would.
func (p *proxyProcess) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// stop ends the process in order.
func (p *proxyProcess) stop() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(5*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	<-p.done
}

// settle runs "dibs settle".
func settle(ctx context.Context, program, store string, args ...string) error {
	out, err := withStore(exec.CommandContext(ctx, program, append([]string{"settle", "--yes"}, args...)...), store).CombinedOutput()
	if err != nil {
		return errors.New(strings.TrimSpace(string(out)))
	}
	return nil
}

// program returns the path of this program, and the name by which a person can
// call it.
func program() (path, name string, err error) {
	if path, err = os.Executable(); err != nil {
		return "", "", err
	}
	if found, err := exec.LookPath("dibs"); err == nil && found == path {
		return path, "dibs", nil
	}
	return path, path, nil
}
