//go:build unix

package servertest

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// A folder is the temporary folder of one server. Its process holds a file lock in it. A
// folder without that lock belongs to a killed test binary, and the next one removes it.
type folder struct {
	path string
	lock *os.File
}

// folderPrefix begins the names of all folders.
const folderPrefix = "dibs-server-"

// newFolder makes a folder that only the account and root can enter.
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
	// The lock file gets its name after it is locked, so that no other process removes
	// the new folder.
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

// remove removes the folder and its content.
func (f *folder) remove() error {
	err := discard(f.path)
	f.lock.Close()
	return err
}

// folderRoot is the parent of an account's folders. Paths of Unix sockets have about a
// hundred characters at most, and another user must be able to enter the folder.
func folderRoot(as *account) string {
	if dir := os.TempDir(); len(dir) <= 40 && (as == nil || enterable(dir)) {
		return dir
	}
	return "/tmp"
}

// enterable reports whether every user may enter a folder.
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

// sweepOnce removes the folders of killed test binaries, once in a process.
var sweepOnce = sync.OnceFunc(func() {
	sweep(folderRoot(nil))
	if folderRoot(nil) != "/tmp" {
		sweep("/tmp")
	}
})

// sweep removes the folders below root whose lock is free. It skips other users' folders.
func sweep(root string) {
	locks, err := filepath.Glob(filepath.Join(root, folderPrefix+"*", "lock"))
	if err != nil {
		return // the pattern is malformed
	}
	for _, name := range locks {
		lock, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			// The next process tries again.
			_ = discard(filepath.Dir(name))
		}
		lock.Close()
	}
}

// discard removes a server's folder and its shared memory. The lock goes last, because
// sweep finds folders by it.
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
