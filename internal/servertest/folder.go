//go:build unix

package servertest

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// A folder is the temporary folder of one server. While its process lives, a
// file lock says so: the folder of a test binary that was killed is known by
// the lock that nobody holds, and is removed by the next one.
type folder struct {
	path string
	lock *os.File
}

// folderPrefix begins the names of all folders.
const folderPrefix = "dibs-server-"

// newFolder makes a folder that only its user may enter.
func newFolder() (*folder, error) {
	sweepOnce()
	path, err := os.MkdirTemp(folderRoot(), folderPrefix)
	if err != nil {
		return nil, err
	}
	// The lock file appears under its name when it is locked already, so that
	// nobody sweeps what has just begun.
	fresh := filepath.Join(path, "lock.new")
	lock, err := os.OpenFile(fresh, os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err == nil {
		err = os.Rename(fresh, filepath.Join(path, "lock"))
	}
	if err != nil {
		os.RemoveAll(path)
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return &folder{path: path, lock: lock}, nil
}

// join returns the path of a name in the folder.
func (f *folder) join(name string) string { return filepath.Join(f.path, name) }

// remove removes the folder and all in it.
func (f *folder) remove() error {
	err := os.RemoveAll(f.path)
	f.lock.Close()
	return err
}

// folderRoot is where the folders are: paths of Unix sockets may have a hundred
// characters or so, and not every temporary folder leaves room for a name.
func folderRoot() string {
	if dir := os.TempDir(); len(dir) <= 40 {
		return dir
	}
	return "/tmp"
}

// sweepOnce removes what killed test binaries left, once in a process.
var sweepOnce = sync.OnceFunc(func() { sweep(folderRoot()) })

// sweep removes the folders below root that nobody holds any more. One whose
// lock cannot be opened belongs to somebody else, who sees to it.
func sweep(root string) {
	locks, err := filepath.Glob(filepath.Join(root, folderPrefix+"*", "lock"))
	if err != nil {
		return // only a malformed pattern does that: there is nothing to sweep
	}
	for _, name := range locks {
		lock, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			os.RemoveAll(filepath.Dir(name))
		}
		lock.Close()
	}
}
