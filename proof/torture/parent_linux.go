package torture

import (
	"os/exec"
	"syscall"
)

// tie makes the kernel kill the worker when the runner's thread ends, because a stopped worker
// would not notice the end of its input. The worker has a process group of its own, so that
// signals to the runner's group do not reach it before it ignores them.
func tie(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
