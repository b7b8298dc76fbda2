package torture

import (
	"os/exec"
	"syscall"
)

// dieWithParent has the kernel kill the worker when the runner's thread that started it
// is gone: one that is stopped would not notice the end of its input.
func dieWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
