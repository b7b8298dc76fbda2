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
