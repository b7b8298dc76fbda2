//go:build unix

package sqlitestore

import (
	"errors"

	"golang.org/x/sys/unix"
)

// writable returns ErrReadOnly if this user may not write the file. SQLite finds
// out too, but only when it has left a log beside the file, of which this user
// is the owner, so that whoever may write the file could not any more.
func writable(path string) error {
	err := unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) {
		return ErrReadOnly
	}
	return nil // SQLite will say what else is wrong
}
