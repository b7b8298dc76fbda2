package torture

import (
	"os"
	"os/signal"
	"syscall"
)

// ignoreSignals makes a write beyond a limit on the size of files fail instead of ending the
// process. It also ignores the signals that end the runner in order, because a supervisor may
// send them to all processes of the group.
func ignoreSignals() {
	signal.Ignore(syscall.SIGXFSZ, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
}

// die ends this process as a crash would.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // it comes soon
}
