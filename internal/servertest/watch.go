//go:build unix

package servertest

import (
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// A watch ends processes when the test binary ends, whatever ends it: a shell
// that waits for the end of a pipe whose other end only we hold.
type watch struct {
	shell *exec.Cmd
	pipe  io.Closer
}

// watchOver starts a watch over processes that must not end before it does.
func watchOver(pids []int) (*watch, error) {
	var script strings.Builder
	script.WriteString("read end; kill -9")
	for _, pid := range pids {
		script.WriteString(" " + strconv.Itoa(pid))
	}
	shell := exec.Command("/bin/sh", "-c", script.String())
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // out of the keyboard's reach
	pipe, err := shell.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := shell.Start(); err != nil {
		return nil, fmt.Errorf("watching over what is paused: %w", err)
	}
	return &watch{shell: shell, pipe: pipe}, nil
}

// end ends the watch and leaves the processes alone.
func (w *watch) end() {
	if w == nil {
		return
	}
	_ = w.shell.Process.Kill() // it is ours and was not waited for: this works
	_ = w.shell.Wait()         // "signal: killed"
	w.pipe.Close()
}
