package history

import (
	"bufio"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Now returns the time of the host's monotonic clock, which all of its processes share
// and nobody steps. In a time namespace it is the host's all the same.
func Now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic("history: the system has no monotonic clock: " + err.Error())
	}
	return time.Duration(t.Nano()) - namespaceOffset()
}

// namespaceOffset is how far this process's monotonic clock is ahead of the host's.
var namespaceOffset = sync.OnceValue(func() time.Duration {
	f, err := os.Open("/proc/self/timens_offsets")
	if err != nil {
		return 0 // a kernel without time namespaces
	}
	defer f.Close()
	return readOffset(bufio.NewScanner(f))
})

// readOffset finds the line "monotonic SECONDS NANOSECONDS"; 0 if there is none.
func readOffset(lines *bufio.Scanner) time.Duration {
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 || fields[0] != "monotonic" {
			continue
		}
		seconds, err := time.ParseDuration(fields[1] + "s")
		if err != nil {
			return 0
		}
		rest, err := time.ParseDuration(fields[2] + "ns")
		if err != nil {
			return 0
		}
		return seconds + rest
	}
	return 0
}
