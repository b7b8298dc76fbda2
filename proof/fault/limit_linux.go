package fault

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"
)

// sizeOfDisk returns how many bytes the filesystem of a folder has.
func sizeOfDisk(folder string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(folder, &s); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: folder, Err: err}
	}
	return int64(s.Blocks) * s.Bsize, nil
}

// isFull reports whether an error says that no space is left.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

func canLimit() error { return nil }

// limitFiles makes the kernel refuse what a process writes to files (EFBIG), until lift is
// called. It lowers the soft limit, which any process may raise again.
func limitFiles(pid int) (lift func() error, err error) {
	var old unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, nil, &old); err != nil {
		return nil, fmt.Errorf("prlimit of process %d: %w", pid, err)
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 0, Max: old.Max}, nil); err != nil {
		return nil, fmt.Errorf("prlimit of process %d: %w", pid, err)
	}
	return func() error {
		err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, &old, nil)
		if errors.Is(err, unix.ESRCH) {
			return nil // it has ended meanwhile
		}
		return err
	}, nil
}
