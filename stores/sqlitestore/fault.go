package sqlitestore

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	modernc "modernc.org/sqlite"

	"github.com/dibs-go/dibs/internal/errtype"
	"github.com/dibs-go/dibs/stores/sqlitestore/internal/lite"
)

// Faults of a file. The error's text names the file and what to do.
var (
	// ErrLocked: another program had the file locked for longer than Options.LockWait.
	// Nothing was done.
	ErrLocked = errtype.New(errtype.Busy, "it is locked by another program")
	// ErrForeign: the file is not a store of dibs. It was not changed.
	ErrForeign = errtype.New(errtype.Foreign, "it is not a store of dibs")
	// ErrLinked: the file, its log or its shared memory has a second name: a hard link, or a
	// symbolic link in place of the log.
	ErrLinked = errtype.New("linked", "it has more than one name")
	// ErrShared: other programs use the file with another Options.Shared.
	ErrShared = errtype.New(errtype.Unsupported, "its tables were made with another Options.Shared")
	// ErrNewer: a newer program made the file.
	ErrNewer = errtype.New(errtype.Newer, "a newer version of dibs made it")
	// ErrDamaged: the file is damaged.
	ErrDamaged = errtype.New("damaged", "it is damaged")
	// ErrReadOnly: the file, its folder or its filesystem cannot be written.
	ErrReadOnly = errtype.New(errtype.ReadOnly, "it cannot be written")
	// ErrDiskFull: the disk is full. Nothing was done. The store works again when there
	// is space.
	ErrDiskFull = errtype.New(errtype.Full, "the disk is full")
	// ErrMoved: the file, its log or its shared memory was deleted, moved or replaced while it
	// was open.
	ErrMoved = errtype.New("moved", "it was deleted, moved or replaced while in use")
	// ErrOtherHost: another host, or another boot of this host, opened the file while it
	// was in use.
	ErrOtherHost = errtype.New("other_host", "another host uses it")
	// ErrOtherDB: the sql.DB given to Transactions is not on the store's file, or uses
	// another driver than modernc.org/sqlite. Nothing was done.
	ErrOtherDB = errors.New("the sql.DB for its transactions has another file or driver")
	// ErrTransactionEnded: a function ended its transaction itself. The transaction was
	// rolled back.
	ErrTransactionEnded = errors.New("the function ended its transaction (Commit, Rollback), and it was rolled back: remove that call; dibs commits when the function returns, and rolls back if it returns an error")
	// ErrClosed: the Store was closed.
	ErrClosed = errtype.New(errtype.Closed, "the store is closed")
)

// errIO: the disk or the filesystem fails.
var errIO = errtype.New("io_error", "it cannot be read or written")

// cures says what to do about each fault.
var cures = map[error]string{
	ErrLocked:    "end the program that has it locked (a shell with an open transaction, a backup) and try again",
	ErrForeign:   "use another file, or move this one away",
	ErrLinked:    "stop all programs that use it, and remove all names but one (find FOLDER -samefile FILE lists them)",
	ErrShared:    "use the same Options.Shared in all programs",
	ErrNewer:     "use that version, or another file",
	ErrDamaged:   "stop all programs that use it, then restore it with its -wal file from a backup, or move it away to start empty",
	ErrReadOnly:  "make the file, its folder and its filesystem writable for this user",
	ErrDiskFull:  "free some space",
	ErrMoved:     "restart all programs that use it, so that they open the same file",
	ErrOtherDB:   "make it with Store.OpenDB, or with modernc.org/sqlite on the store's file",
	ErrOtherHost: "a file serves one host; use a database server for several",
}

// FileError is what is wrong with a store's file.
type FileError struct {
	Path string
	// Err is one of this package's errors, the system's error, or both.
	Err error
}

func (e *FileError) Error() string {
	s := "sqlitestore: " + e.Path + ": " + e.Err.Error()
	for fault, cure := range cures {
		if errors.Is(e.Err, fault) {
			return s + "; " + cure
		}
	}
	return s
}

// Unwrap returns Err.
func (e *FileError) Unwrap() error { return e.Err }

// fault adds the file's name to an error, and the package's error for SQLite's code.
func fault(path string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*FileError](err); ok {
		return err
	}
	if e := sqliteError(err); e != nil {
		if kind := kindOf(e.Code, e.Errno); kind != nil {
			err = fmt.Errorf("%w: %w", kind, err)
		}
	}
	return &FileError{Path: path, Err: err}
}

// kindOf returns the package's error for a code of SQLite, or nil.
func kindOf(code lite.Code, errno syscall.Errno) error {
	switch code {
	case lite.IOErr:
		if errno == syscall.ENOSPC || errno == syscall.EDQUOT {
			return ErrDiskFull
		}
		return errIO
	case lite.Busy, lite.Locked:
		return ErrLocked
	case lite.NotADB:
		return ErrForeign
	case lite.Corrupt:
		return ErrDamaged
	case lite.ReadOnly, lite.Perm, lite.CantOpen, lite.Auth:
		return ErrReadOnly
	case lite.Full:
		return ErrDiskFull
	}
	return nil
}

// sqliteError returns SQLite's error, from the store's or the application's driver, or
// nil.
func sqliteError(err error) *lite.Error {
	if e, ok := errors.AsType[*lite.Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*modernc.Error](err); ok {
		return &lite.Error{Code: lite.Code(e.Code() & 0xff), Extended: int32(e.Code())} //nolint:gosec // it fits
	}
	return nil
}

// isCode reports whether err is one of SQLite's codes.
func isCode(err error, codes ...lite.Code) bool {
	e := sqliteError(err)
	return e != nil && slices.Contains(codes, e.Code)
}
