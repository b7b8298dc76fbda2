package fault

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// timeNamespaces returns nil where processes can be given a time since boot of their own.
//
// That is all that can be had for one process alone. The time of day is one for the whole
// host, and to set it would hit everybody; and a Go program asks the kernel for it, so that
// no library can be put in between. What clients do with the time of day is looked up in
// their code instead (TestNoClock of the stores): nothing.
func timeNamespaces() error {
	if _, err := exec.LookPath("unshare"); err != nil {
		return errors.New("there is no unshare command; install util-linux")
	}
	if out, err := exec.Command("unshare", append(inTimeNamespace(hour)[1:], "true")...).CombinedOutput(); err != nil {
		return fmt.Errorf("no time namespace can be made (%s); run it as root, on Linux 5.6 or newer", strings.TrimSpace(string(out)))
	}
	return nil
}

// inTimeNamespace is the command before another that is to run with the time since boot so
// much ahead of the host's.
func inTimeNamespace(ahead time.Duration) []string {
	s := strconv.Itoa(int(ahead.Seconds()))
	return []string{"unshare", "--time", "--monotonic=" + s, "--boottime=" + s}
}

// clockOf returns how far a process's time since boot is ahead of the host's, as the
// kernel has it; 0 when it is not or the process is gone.
func clockOf(pid int) time.Duration {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/timens_offsets")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == "monotonic" {
			s, err := strconv.Atoi(fields[1])
			if err != nil {
				return 0
			}
			return time.Duration(s) * time.Second
		}
	}
	return 0
}

// sinceBoot is how long the host has been running.
func sinceBoot() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // every kernel that Go runs on has it
	return time.Duration(t.Nano())
}
