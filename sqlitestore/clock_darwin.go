package sqlitestore

import (
	"fmt"

	"golang.org/x/sys/unix"
)

func bootID() (string, error) {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return "", fmt.Errorf("cannot tell this boot of the host from others: %w", err)
	}
	return id, nil
}

func sinceBoot() int64 {
	var t unix.Timespec
	// On this system the monotonic clock goes on while the host sleeps.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano() / 1000
}
