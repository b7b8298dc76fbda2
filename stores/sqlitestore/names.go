package sqlitestore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/dibs-go/dibs/stores/sqlitestore/internal/lite"
)

// SQLite finds a file's log and its shared memory, where the locks are, by adding these to
// the file's name. Programs that open a file by two names use two logs, and neither sees
// what the other does.
const (
	logSuffix    = "-wal"
	memorySuffix = "-shm"
)

// identity is which files the names of a store lead to.
type identity struct {
	given string // as given to Open, absolute
	full  string // the one name of the file
	files [3]os.FileInfo
}

// resolve returns the absolute path of a file that need not exist, as it was given, and its
// one name, without symbolic links.
func resolve(path string) (n identity, err error) {
	if path == "" || strings.ContainsRune(path, 0) {
		return n, fmt.Errorf("%w: the path %q cannot name a file", ErrForeign, path)
	}
	if path == ":memory:" || strings.HasPrefix(path, "file:") {
		return n, fmt.Errorf("%w: other programs take %q for something else than the name of a file; write a path, such as .%c%s", ErrForeign, path, filepath.Separator, path)
	}
	if n.given = path; !filepath.IsAbs(path) {
		// Not filepath.Abs, which takes the parent of a link for that of its target.
		folder, err := os.Getwd()
		if err == nil {
			folder, err = filepath.EvalSymlinks(folder)
		}
		if err != nil {
			return n, err
		}
		n.given = folder + string(filepath.Separator) + path
	}
	next := n.given
	for range 64 {
		folder, base := filepath.Split(next)
		if folder, err = filepath.EvalSymlinks(folder); err != nil {
			return n, fmt.Errorf("its folder does not exist: %w; create it first", err)
		}
		n.full = filepath.Join(folder, base)
		target, err := os.Readlink(n.full)
		if err != nil {
			return n, n.agree() // it is not a link
		}
		if next = target; !filepath.IsAbs(target) {
			next = folder + string(filepath.Separator) + target
		}
	}
	return n, fmt.Errorf("%w: its symbolic links lead nowhere", ErrForeign)
}

// suffixes are those of the files of an identity.
var suffixes = [3]string{"", logSuffix, memorySuffix}

// agree returns an error if the path leads to another file than its one name. The links in
// /proc can do that.
func (n *identity) agree() error {
	a, errA := os.Stat(n.given)
	b, errB := os.Stat(n.full)
	if errors.Is(errA, fs.ErrNotExist) && errors.Is(errB, fs.ErrNotExist) || errA == nil && errB == nil && os.SameFile(a, b) {
		return nil
	}
	return errors.Join(fmt.Errorf("%w: it does not have the name %s that its links lead to; open it by its own name", ErrForeign, n.full), errA, errB)
}

// alone returns an error if one of the files exists and has a second name.
func (n *identity) alone() error {
	for _, suffix := range suffixes {
		info, err := os.Lstat(n.full + suffix)
		if err == nil {
			err = single(n.full+suffix, info)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// single returns an error if a file has a second name.
func single(path string, info os.FileInfo) error {
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("%w: %s is a symbolic link", ErrLinked, path)
	case info.Mode().IsRegular() && links(info) > 1:
		return fmt.Errorf("%w: %s has %d hard links", ErrLinked, path, links(info))
	}
	return nil
}

// opening is held from before a file is created until SQLite has it open, because closing a
// file drops the locks of all connections of this process to it.
var opening sync.Mutex

// open opens the file in SQLite. It creates a file that only this user can read.
func (n *identity) open() (*lite.Conn, error) {
	opening.Lock()
	defer opening.Unlock()
	if err := n.inspect(); err != nil {
		return nil, err
	}
	err := n.note(0)
	if errors.Is(err, fs.ErrNotExist) {
		if err = create(n.full); err == nil {
			err = n.note(0)
		}
	}
	if err != nil {
		return nil, err
	}
	return lite.Open(n.full, lite.ReadWrite)
}

// inspect checks the names before SQLite uses them.
func (n *identity) inspect() error {
	info, err := os.Lstat(n.full)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return n.alone()
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%w: it is a folder", ErrForeign)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%w: it is not a regular file", ErrForeign)
	}
	if err := n.alone(); err != nil {
		return err
	}
	return writable(n.full)
}

// create creates an empty file, unless another process has just done it.
func create(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case err == nil:
		return f.Close()
	case errors.Is(err, fs.ErrExist):
		return nil
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: %w", ErrReadOnly, err)
	}
	return err
}

// opened notes the log and the shared memory, and gives them the file's mode: an operator
// may have changed that while they existed.
func (n *identity) opened() error {
	for i := 1; i < len(n.files); i++ {
		if err := n.note(i); err != nil {
			return err
		}
		if mode := n.files[0].Mode().Perm(); n.files[i].Mode().Perm() != mode {
			_ = os.Chmod(n.full+suffixes[i], mode) // another user's file keeps its mode
		}
	}
	return n.check()
}

// note remembers the file with that suffix.
func (n *identity) note(suffix int) (err error) {
	n.files[suffix], err = os.Lstat(n.full + suffixes[suffix])
	return err
}

// check returns an error if the names no longer lead to the files that are open, or the
// files have got other names.
func (n *identity) check() error {
	for i, suffix := range suffixes {
		path := n.full + suffix
		info, err := os.Lstat(path)
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", ErrMoved, err)
		case !os.SameFile(info, n.files[i]):
			return fmt.Errorf("%w: %s is another file", ErrMoved, path)
		case links(info) > 1:
			return single(path, info)
		}
	}
	if n.given != n.full {
		if info, err := os.Stat(n.given); err != nil || !os.SameFile(info, n.files[0]) {
			return errors.Join(fmt.Errorf("%w: %s leads to another file", ErrMoved, n.given), err)
		}
	}
	return nil
}
