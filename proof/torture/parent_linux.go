package torture

import (
	"os/exec"
	"syscall"
)

// tie has the kernel kill the worker when the runner's thread that started it is gone: one
// that is stopped would not notice the end of its input. What ends the runner's group does
// not reach it: it could not ignore that before it runs.
func tie(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
