//go:build unix

package servertest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"github.com/dibs-go/dibs/internal/prove/wire"
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

// An account is the user of a server if the test runs as root, because database servers
// refuse root. nil is the user of the test.
type account struct{ uid, gid int }

// unprivileged returns the first of the accounts that exists, or nobody. It returns nil
// unless the test runs as root.
func unprivileged(names ...string) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range append(names, "nobody") {
		u, err := user.Lookup(name)
		if _, unknown := errors.AsType[user.UnknownUserError](err); unknown {
			continue
		}
		if err != nil {
			return nil, err
		}
		uid, err := strconv.Atoi(u.Uid)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.Atoi(u.Gid)
		if err != nil {
			return nil, err
		}
		return &account{uid: uid, gid: gid}, nil
	}
	return nil, errors.New("the system has no user nobody, but the server refuses to run as root")
}

// credential is the credential of the account's processes.
func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
}

// own gives a file to the account.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Lchown(path, a.uid, a.gid)
}

// write writes a file that only the account can read.
func (a *account) write(path, text string) error {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	return a.own(path)
}

// Owner owns a server, which ends with it. A *testing.T, a *testing.B and a *Scope are
// owners.
type Owner interface {
	Helper()
	Name() string
	// Failed reports whether to print the servers' logs.
	Failed() bool
	Logf(format string, args ...any)
	// Fatalf does not return.
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// A Scope owns servers that no test owns: servers that the tests of a binary share, and
// servers of programs that measure. Its methods may be called from several goroutines.
type Scope struct {
	stderr io.Writer
	exit   func(code int)

	mu     sync.Mutex
	failed bool
	undo   []func()
}

var _ Owner = (*Scope)(nil)

// NewScope returns a Scope. Call its Close. Its messages go to standard error.
func NewScope() *Scope { return &Scope{stderr: os.Stderr, exit: os.Exit} }

// Close ends the scope's servers, the last one first.
func (s *Scope) Close() {
	for {
		s.mu.Lock()
		n := len(s.undo)
		if n == 0 {
			s.mu.Unlock()
			return
		}
		f := s.undo[n-1]
		s.undo = s.undo[:n-1]
		s.mu.Unlock()
		f()
	}
}

// Helper does nothing.
func (s *Scope) Helper() {}

// Name returns the program's name.
func (s *Scope) Name() string { return os.Args[0] }

// Failed reports whether Fatalf was called.
func (s *Scope) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// Logf writes a line to standard error.
func (s *Scope) Logf(format string, args ...any) {
	fmt.Fprintf(s.stderr, format+"\n", args...)
}

// Fatalf writes a line to standard error, closes the scope and ends the program
// with exit code 1.
func (s *Scope) Fatalf(format string, args ...any) {
	s.Logf(format, args...)
	s.mu.Lock()
	s.failed = true
	s.mu.Unlock()
	s.Close()
	s.exit(1)
}

// Cleanup calls f when the scope is closed.
func (s *Scope) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.undo = append(s.undo, f)
}

// NewWire opens a wire to the server at target. It ends with its owner.
func NewWire(owner Owner, target string) *wire.Wire {
	owner.Helper()
	w, err := wire.Open(target)
	if err != nil {
		owner.Fatalf("%v", err)
	}
	owner.Cleanup(func() { _ = w.Close() })
	return w
}
