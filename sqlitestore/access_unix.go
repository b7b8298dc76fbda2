//go:build unix

package sqlitestore

import (
	"errors"

	"golang.org/x/sys/unix"
)

// writable returns ErrReadOnly if this user may not write the file. SQLite would report
// it only after it has created a log that this user owns, and then the file's real users
// could not write any more.
func writable(path string) error {
	err := unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) {
		return ErrReadOnly
	}
	return nil // SQLite reports other faults
}
