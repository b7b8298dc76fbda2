package demo

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// proxyProcess is a process of dibs proxy.
type proxyProcess struct {
	cmd  *exec.Cmd
	url  string
	page string // its URL
	done chan struct{}
}

// startLimit bounds how long a proxy may take to start, stopLimit to stop.
const (
	startLimit = time.Minute
	stopLimit  = 5 * time.Second
)

// command returns a command of dibs. The store is in its environment, because the URL may
// have a password, and every user of the host can read arguments.
func (d *demo) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, d.program, args...)
	cmd.Env = append(os.Environ(), "DIBS_STORE="+d.store, "DIBS_STORE_FILE=")
	return cmd
}

// startProxy starts dibs proxy with the flags, and waits until it serves.
func (d *demo) startProxy(guard bool, flags ...string) (*proxyProcess, error) {
	p := &proxyProcess{done: make(chan struct{})}
	args := append([]string{"proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--access-log=off"}, flags...)
	p.cmd = d.command(context.Background(), args...) // ended by kill or stop
	p.cmd.Env = append(p.cmd.Env, fmt.Sprintf("DIBS_PROXY_GUARD=%t", guard))
	var stderr bytes.Buffer
	p.cmd.Stderr = &stderr
	p.cmd.SysProcAttr = ownGroup
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	limit := time.AfterFunc(startLimit, func() { _ = p.cmd.Process.Kill() })
	defer limit.Stop()
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	_, rest, ok := strings.Cut(line, "listening on ")
	if !ok {
		p.kill()
		return nil, fmt.Errorf("the proxy did not start: %s", strings.TrimSpace(stderr.String()))
	}
	p.url, _, _ = strings.Cut(strings.TrimSpace(rest), ",")
	_, p.page, _ = strings.Cut(strings.TrimSpace(rest), ", admin ")
	return p, nil
}

// kill ends the process at once.
func (p *proxyProcess) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// stop asks the process to end, and waits for it.
func (p *proxyProcess) stop() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	limit := time.AfterFunc(stopLimit, func() { _ = p.cmd.Process.Kill() })
	defer limit.Stop()
	<-p.done
}

// program returns the path of this program, and the name that a shell finds it by.
func program() (path, name string, err error) {
	if path, err = os.Executable(); err != nil {
		return "", "", err
	}
	if found, err := exec.LookPath("dibs"); err == nil && found == path {
		return path, "dibs", nil
	}
	return path, path, nil
}
