package lite

import (
	"fmt"
	"syscall"

	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"
)

// Code is a primary result code of SQLite.
type Code int32

// The codes that callers use.
const (
	Busy        Code = lib.SQLITE_BUSY
	Locked      Code = lib.SQLITE_LOCKED
	Full        Code = lib.SQLITE_FULL
	ReadOnly    Code = lib.SQLITE_READONLY
	CantOpen    Code = lib.SQLITE_CANTOPEN
	Corrupt     Code = lib.SQLITE_CORRUPT
	NotADB      Code = lib.SQLITE_NOTADB
	IOErr       Code = lib.SQLITE_IOERR
	Perm        Code = lib.SQLITE_PERM
	Auth        Code = lib.SQLITE_AUTH
	NoMem       Code = lib.SQLITE_NOMEM
	TooBig      Code = lib.SQLITE_TOOBIG
	Interrupted Code = lib.SQLITE_INTERRUPT
)

// KeyTaken is the extended code for a primary key that exists already.
const KeyTaken = lib.SQLITE_CONSTRAINT_PRIMARYKEY

// Error is SQLite's error.
type Error struct {
	Code     Code          // primary
	Extended int32         // extended code
	Errno    syscall.Errno // the system's last error, or 0
	Text     string
}

func (e *Error) Error() string { return fmt.Sprintf("%s (SQLite code %d)", e.Text, e.Extended) }

func (c *Conn) fail(rc int32) error {
	text := libc.GoString(lib.Xsqlite3_errstr(c.tls, rc))
	if c.db != 0 && lib.Xsqlite3_extended_errcode(c.tls, c.db) == rc {
		text = libc.GoString(lib.Xsqlite3_errmsg(c.tls, c.db))
	}
	e := &Error{Code: Code(rc & 0xff), Extended: rc, Text: text}
	if c.db != 0 {
		e.Errno = syscall.Errno(lib.Xsqlite3_system_errno(c.tls, c.db))
	}
	return e
}
