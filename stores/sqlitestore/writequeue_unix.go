//go:build unix

package sqlitestore

import (
	"os"

	"golang.org/x/sys/unix"
)

const hasFileLocks = true

var errWouldWait error = unix.EWOULDBLOCK

// lockFile locks the open file, at once or in the kernel's queue. The file stays open
// during the wait even if it is closed, because its descriptor could be reused otherwise.
func lockFile(f *os.File, wait bool) error {
	how := unix.LOCK_EX
	if !wait {
		how |= unix.LOCK_NB
	}
	for {
		if err := flock(f, how); err != unix.EINTR {
			return err
		}
	}
}

func unlockFile(f *os.File) { _ = flock(f, unix.LOCK_UN) }

func flock(f *os.File, how int) (err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if controlled := raw.Control(func(fd uintptr) { err = unix.Flock(int(fd), how) }); controlled != nil {
		return controlled
	}
	return err
}
