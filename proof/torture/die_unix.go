//go:build unix

package torture

import (
	"os"
	"os/signal"
	"syscall"
)

// ignoreFull lets a write beyond a limit on the size of files fail, instead of ending
// the process. An interrupt of the terminal is the runner's to pass on.
func ignoreFull() { signal.Ignore(syscall.SIGXFSZ, syscall.SIGINT) }

// die ends this process as a crash would.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // it comes soon
}
