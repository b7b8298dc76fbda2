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

// newFolder makes a folder that only the account may enter (and root).
func newFolder(as *account) (*folder, error) {
	sweepOnce()
	path, err := os.MkdirTemp(folderRoot(as), folderPrefix)
	if err != nil {
		return nil, err
	}
	if err := as.own(path); err != nil {
		os.RemoveAll(path)
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
	err := discard(f.path)
	f.lock.Close()
	return err
}

// folderRoot is where the folders of an account are: paths of Unix sockets may
// have a hundred characters or so, and not every temporary folder leaves room
// for a name, or can be entered by somebody else.
func folderRoot(as *account) string {
	if dir := os.TempDir(); len(dir) <= 40 && (as == nil || enterable(dir)) {
		return dir
	}
	return "/tmp"
}

// enterable reports whether everybody may use what is below a folder.
func enterable(dir string) bool {
	for {
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return true
		}
		dir = parent
	}
}

// sweepOnce removes what killed test binaries left, once in a process.
var sweepOnce = sync.OnceFunc(func() {
	sweep(folderRoot(nil))
	if folderRoot(nil) != "/tmp" {
		sweep("/tmp")
	}
})

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
			// What cannot be removed yet is tried again by the next one.
			_ = discard(filepath.Dir(name))
		}
		lock.Close()
	}
}

// discard removes a server's folder and what the server has in the kernel. The
// lock goes last: without it nobody would look at the rest again.
func discard(dir string) error {
	if err := removeSegment(dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Name() != "lock" {
			if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(dir)
}
