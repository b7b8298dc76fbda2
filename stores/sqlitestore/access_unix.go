//go:build unix

package sqlitestore

import (
	"errors"
	"os"
	"syscall"

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

// links returns how many names a file has.
func links(info os.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(s.Nlink) //nolint:unconvert // its type differs between systems
	}
	return 1
}

// noFollow keeps a file from being created where a symbolic link leads to.
const noFollow = unix.O_NOFOLLOW

// likeOwner gives a file that root created to the owner of another, as SQLite does with the
// log, so that the owner's programs can open it.
func likeOwner(f *os.File, of os.FileInfo) {
	if s, ok := of.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		_ = f.Chown(int(s.Uid), int(s.Gid)) // else the queue is not used
	}
}

// readable reports whether every user of the host may read a file.
func readable(info os.FileInfo) bool { return info.Mode()&0o004 != 0 }
