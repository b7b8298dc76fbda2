package torture

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// killed reports whether the process was ended by SIGKILL. It is gone.
func (p *process) killed() bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// stopLimit is how long a process may take to stand still.
const stopLimit = time.Second

// stop stops the process, and reports whether it stands still.
func (p *process) stop() (bool, error) {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return false, nil // it is gone
	}
	for end := time.Now().Add(stopLimit); time.Now().Before(end); time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil {
			return false, nil
		}
		// The name in the second field may have anything in it but what comes after.
		if _, rest, ok := strings.Cut(string(stat), ") "); ok && strings.HasPrefix(rest, "T") {
			return true, nil
		}
	}
	return false, nil
}

// goOn lets it go on.
func (p *process) goOn() error {
	_ = p.cmd.Process.Signal(syscall.SIGCONT) // it may be gone
	return nil
}
