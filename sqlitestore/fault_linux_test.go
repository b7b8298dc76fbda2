package sqlitestore

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
)

// A file that this user may not write, or in a folder or on a filesystem where
// nothing may be written, is refused. Root may do everything, so as root the
// attempt is made by a child that is nobody.
func TestNotWritable(t *testing.T) {
	folder, err := os.MkdirTemp("", "sqlitestore")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	binary := copyBinary(t, folder)
	for _, test := range []struct {
		name         string
		file, folder os.FileMode
	}{
		{"file", 0o444, 0o777},
		{"folder", 0o666, 0o555},
		{"unreadable", 0, 0o777},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := filepath.Join(folder, test.name)
			if err := os.Mkdir(in, 0o755); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(in, "dibs.db")
			s, err := Open(path, nil)
			if err == nil {
				err = s.Close()
			}
			if err = errors.Join(err, os.Chmod(path, test.file), os.Chmod(in, test.folder), os.Chmod(folder, 0o755)); err != nil {
				t.Fatal(err)
			}
			p := startAs(t, binary, path)
			if err := p.input.Close(); err != nil {
				t.Fatal(err)
			}
			err = p.cmd.Wait()
			if said := p.errors.String(); err == nil || !strings.Contains(said, path) || !strings.Contains(said, ErrReadOnly.Error()) {
				t.Errorf("the child ended with %v and said %q", err, said)
			}
			if err := errors.Join(os.Chmod(in, 0o755), os.Chmod(path, 0o644)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// startAs starts a child that opens the file, as nobody if this is root.
func startAs(t *testing.T, binary, path string) *process {
	t.Helper()
	p := prepareChild(t, "open", path)
	p.cmd.Path = binary
	if os.Getuid() == 0 {
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		p.cmd.Dir = "/"
	}
	p.launch(t)
	return p
}

// A filesystem that is really full, if one may be mounted here. TestDiskFull
// checks the same everywhere, with a limit that SQLite keeps.
func TestFilesystemFull(t *testing.T) {
	folder := t.TempDir()
	if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, "size=2m"); err != nil {
		t.Logf("no filesystem can be mounted here (%v); only TestDiskFull checks a full disk", err)
		return
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(folder, 0); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(folder, "dibs.db")
	filler := filepath.Join(folder, "filler")
	write(t, filler, make([]byte, 1<<20))
	s, err := Open(path, &Options{PruneEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	kept := 0
	var keep dibs.Settlement
	for {
		c := lock(strconv.Itoa(kept))
		mustGrant(t, s, c)
		keep = release(c)
		keep.Outcome, keep.Data, keep.Retention = dibs.Keep, make([]byte, 100_000), time.Hour
		errs := make([]error, 1)
		if err = s.Settle(t.Context(), []dibs.Settlement{keep}, errs); err != nil || errs[0] != nil {
			break
		}
		if kept++; kept > 100 {
			t.Fatal("the filesystem does not get full")
		}
	}
	if !errors.Is(err, ErrDiskFull) || !strings.Contains(err.Error(), path) {
		t.Errorf("on a full disk the error is %v", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	mustSettle(t, s, keep)
	for i := range kept + 1 {
		c := lock(strconv.Itoa(i))
		c.MaxAge = dibs.AnyAge
		wantState(t, "a record after the disk was full", claimOne(t, s, c), dibs.Done)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	checkSound(t, path)
	if err := syscall.Mount("", folder, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, nil); !errors.Is(err, ErrReadOnly) {
		t.Errorf("on a read-only filesystem the error is %v", err)
	}
	if _, err := Open(filepath.Join(folder, "new.db"), nil); !errors.Is(err, ErrReadOnly) {
		t.Errorf("a new file on a read-only filesystem: %v", err)
	}
}

// A filesystem that is full when a transaction is committed. The statements before had
// room in memory.
func TestFilesystemFullAtCommit(t *testing.T) {
	folder := t.TempDir()
	if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, "size=2m"); err != nil {
		t.Logf("no filesystem can be mounted here (%v); only TestTransactionOnAFullDisk checks a full disk", err)
		return
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(folder, 0); err != nil {
			t.Error(err)
		}
	})
	filler := filepath.Join(folder, "filler")
	l := newLedger(t, filepath.Join(folder, "app.db"), &Options{Shared: true, PruneEvery: -1})
	c := lock("k")
	tx, inner := l.begin(t.Context(), c)
	if _, err := inner.ExecContext(t.Context(), "INSERT INTO ledger VALUES (hex(zeroblob(200000)))"); err != nil {
		t.Fatal(err)
	}
	fillUp(t, filler)
	if err := tx.Commit(t.Context(), keep(c)); !errors.Is(err, dibs.ErrRolledBack) || !errors.Is(err, ErrDiskFull) {
		t.Errorf("commit: %v", err)
	}
	l.want("k", 0)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	wantState(t, "the key", claimOne(t, l.s, asked("k")), dibs.Held)
	mustSettle(t, l.s, release(c))
	if _, err := l.once("k"); err != nil {
		t.Errorf("when there is room: %v", err)
	}
	l.want("k", 1)
}

// fillUp takes all the space that is left.
func fillUp(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
