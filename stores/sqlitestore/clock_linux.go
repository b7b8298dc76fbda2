package sqlitestore

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("cannot tell this boot of the host from others: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

func sinceBoot() int64 {
	var t unix.Timespec
	// Every kernel that Go supports has this clock.
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	return t.Nano() / 1000
}
