//go:build unix

package sqlitestore

import (
	"os"

	"golang.org/x/sys/unix"
)

const hasFileLocks = true

var errWouldWait error = unix.EWOULDBLOCK

// lockFile locks the open file for this process: at once, or by waiting in the
// kernel's queue.
func lockFile(f *os.File, wait bool) error {
	how := unix.LOCK_EX
	if !wait {
		how |= unix.LOCK_NB
	}
	for {
		err := unix.Flock(int(f.Fd()), how)
		if err != unix.EINTR {
			return err
		}
	}
}

func unlockFile(f *os.File) { _ = unix.Flock(int(f.Fd()), unix.LOCK_UN) }
