package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// processor returns the processor time that the server's process has used so far.
func (s *server) processor() time.Duration {
	// The clock of another process, as clock_getcpuclockid(3) makes it.
	clock := int32(^s.cmd.Process.Pid<<3 | 2)
	var t unix.Timespec
	if err := unix.ClockGettime(clock, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
