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
	// On macOS this clock includes suspension.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano() / 1000
}
