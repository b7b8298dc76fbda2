package torture

import (
	"os"
	"os/signal"
	"syscall"
)

// ignoreFull lets a write beyond a limit on the size of files fail, instead of ending
// the process. What ends the runner in order may reach all that it started, from what
// supervises it; it is the runner's to pass on.
func ignoreFull() {
	signal.Ignore(syscall.SIGXFSZ, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
}

// die ends this process as a crash would.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // it comes soon
}
