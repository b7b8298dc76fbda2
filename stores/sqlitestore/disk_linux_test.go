//go:build nightly

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

	"github.com/dibs-go/dibs/internal/errtype"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// smallDisk mounts a filesystem of two megabytes, which takes root.
func smallDisk(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, "size=2m"); err != nil {
		t.Fatalf("no filesystem can be mounted here: %v; run this as root, or leave it out with -skip %s", err, t.Name())
	}
	t.Cleanup(func() { testkit.Check(t, syscall.Unmount(folder, 0)) })
	return folder
}

// A filesystem that is really full. TestDiskFull checks the same everywhere, with a
// limit that SQLite keeps.
func TestFilesystemFull(t *testing.T) {
	folder := smallDisk(t)
	path := filepath.Join(folder, "dibs.db")
	filler := filepath.Join(folder, "filler")
	write(t, filler, make([]byte, 1<<20))
	s, err := Open(path, &Options{PruneEvery: -1})
	testkit.Must(t, err)
	kept := 0
	var keep store.Settlement
	for {
		c := lock(strconv.Itoa(kept))
		mustGrant(t, s, c)
		keep = release(c)
		keep.Outcome, keep.Data, keep.Retention = store.Keep, make([]byte, 100_000), time.Hour
		errs := make([]error, 1)
		if err = s.Settle(t.Context(), []store.Settlement{keep}, errs); err != nil || errs[0] != nil {
			break
		}
		if kept++; kept > 100 {
			t.Fatal("the filesystem does not get full")
		}
	}
	if !errors.Is(err, ErrDiskFull) || !strings.Contains(err.Error(), path) || errtype.Of(err) != "full" {
		t.Errorf("on a full disk the error is %v", err)
	}
	testkit.Must(t, os.Remove(filler))
	mustSettle(t, s, keep)
	for i := range kept + 1 {
		c := lock(strconv.Itoa(i))
		c.MaxAge = store.AnyAge
		wantState(t, "a record after the disk was full", claimOne(t, s, c), store.Done)
	}
	testkit.Check(t, s.Close())
	checkSound(t, path)
	testkit.Must(t, syscall.Mount("", folder, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	if _, err := Open(path, nil); !errors.Is(err, ErrReadOnly) || errtype.Of(err) != "read_only" {
		t.Errorf("on a read-only filesystem the error is %v", err)
	}
	if _, err := Open(filepath.Join(folder, "new.db"), nil); !errors.Is(err, ErrReadOnly) {
		t.Errorf("a new file on a read-only filesystem: %v", err)
	}
}

// A filesystem that is full when a transaction is committed. The statements before had
// room in memory. TestTransactionOnAFullDisk checks the same with a limit that SQLite
// keeps.
func TestFilesystemFullAtCommit(t *testing.T) {
	folder := smallDisk(t)
	filler := filepath.Join(folder, "filler")
	l := newLedger(t, filepath.Join(folder, "app.db"), &Options{Shared: true, PruneEvery: -1})
	c := lock("k")
	tx, inner := l.begin(t.Context(), c)
	if _, err := inner.ExecContext(t.Context(), "INSERT INTO ledger VALUES (hex(zeroblob(200000)))"); err != nil {
		t.Fatal(err)
	}
	fillUp(t, filler)
	if err := tx.Commit(t.Context(), keep(c)); !errors.Is(err, store.ErrRolledBack) || !errors.Is(err, ErrDiskFull) {
		t.Errorf("commit: %v", err)
	}
	l.want("k", 0)
	testkit.Must(t, os.Remove(filler))
	wantState(t, "the key", claimOne(t, l.s, asked("k")), store.Held)
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
	testkit.Must(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	testkit.Must(t, f.Close())
}
