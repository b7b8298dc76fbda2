package history

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now returns the time of the host's monotonic clock. All processes of the host share it,
// and it is never set.
func Now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic("history: the system has no monotonic clock: " + err.Error())
	}
	return time.Duration(t.Nano())
}
