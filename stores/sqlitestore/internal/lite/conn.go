// Package lite is the part of SQLite that the store needs, on the C interface that
// modernc.org/sqlite translated to Go.
//
// The store runs a few prepared statements hundreds of thousands of times a second from
// one goroutine. database/sql and its driver cost more for each statement (locks,
// watchers of contexts, boxed values, copies) than SQLite itself does.
//
// A Conn and its Stmts belong to one goroutine at a time.
package lite

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unsafe"

	"modernc.org/libc"
	"modernc.org/libc/sys/types"
	lib "modernc.org/sqlite/lib"
)

// Mode says how a file is opened.
type Mode int32

// The modes of Open.
const (
	// ReadWrite opens an existing file.
	ReadWrite Mode = lib.SQLITE_OPEN_READWRITE
	// Create opens a file, and creates it if it does not exist.
	Create Mode = lib.SQLITE_OPEN_READWRITE | lib.SQLITE_OPEN_CREATE
)

// Conn is one connection to a database file.
type Conn struct {
	tls   *libc.TLS
	db    uintptr
	stmts []*Stmt
}

// Open opens the file at path, which is taken literally if it is absolute: no URI, no
// special names.
func Open(path string, mode Mode) (*Conn, error) {
	c := &Conn{tls: libc.NewTLS()}
	name, err := libc.CString(path)
	if err != nil {
		c.tls.Close()
		return nil, err
	}
	defer libc.Xfree(c.tls, name)
	out := libc.Xcalloc(c.tls, 1, types.Size_t(unsafe.Sizeof(uintptr(0))))
	if out == 0 {
		c.tls.Close()
		return nil, errors.New("out of memory")
	}
	defer libc.Xfree(c.tls, out)
	flags := int32(mode) | lib.SQLITE_OPEN_NOMUTEX | lib.SQLITE_OPEN_EXRESCODE
	rc := lib.Xsqlite3_open_v2(c.tls, name, out, flags, 0)
	c.db = *(*uintptr)(pointer(out))
	if rc != lib.SQLITE_OK {
		err := c.fail(rc)
		c.close()
		return nil, err
	}
	return c, nil
}

// Close finalizes the connection's statements and closes it. A second Close does nothing.
func (c *Conn) Close() error {
	if c.tls == nil {
		return nil
	}
	for _, s := range c.stmts {
		s.finalize()
	}
	c.stmts = nil
	return c.close()
}

func (c *Conn) close() error {
	var err error
	if rc := lib.Xsqlite3_close_v2(c.tls, c.db); rc != lib.SQLITE_OK {
		err = c.fail(rc)
	}
	c.tls.Close()
	c.db, c.tls = 0, nil
	return err
}

// Exec runs one rare statement and ignores its rows.
func (c *Conn) Exec(sql string) error { return c.once(sql, nil) }

// ExecScript runs the statements of a script. A semicolon at the end of a line ends a
// statement.
func (c *Conn) ExecScript(script string) error {
	for sql := range strings.SplitSeq(script, ";\n") {
		if err := c.Exec(sql); err != nil {
			return err
		}
	}
	return nil
}

// Query runs one rare statement and returns the first column of its first row as a
// number, or 0.
func (c *Conn) Query(sql string) (int64, error) {
	var first int64
	err := c.once(sql, func(s *Stmt) { first = s.Int(0) })
	return first, err
}

// QueryText is Query for a text or blob; "" if there is none.
func (c *Conn) QueryText(sql string) (string, error) {
	var first string
	err := c.once(sql, func(s *Stmt) { first = string(s.Bytes(0)) })
	return first, err
}

// QueryTextUntil is QueryText, and fails with Interrupted when done is closed.
func (c *Conn) QueryTextUntil(done <-chan struct{}, sql string) (string, error) {
	var watch sync.WaitGroup
	ended := make(chan struct{})
	watch.Go(func() {
		select {
		case <-done:
		case <-ended:
			return
		}
		tls := libc.NewTLS()
		defer tls.Close()
		// Repeated, because an interrupt counts only while a statement runs.
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			lib.Xsqlite3_interrupt(tls, c.db)
			select {
			case <-tick.C:
			case <-ended:
				return
			}
		}
	})
	defer watch.Wait()
	defer close(ended)
	return c.QueryText(sql)
}

// once runs a statement to its end and calls first with its first row.
func (c *Conn) once(sql string, first func(*Stmt)) error {
	s, err := c.prepare(sql, 0)
	if err != nil {
		return err
	}
	if s.p == 0 {
		return nil // only space and comments
	}
	defer s.finalize()
	return s.Each(func(*Stmt) bool {
		if first != nil {
			first(s)
			first = nil
		}
		return true
	})
}

// Prepare prepares a statement, which lasts as long as the connection.
func (c *Conn) Prepare(sql string) (*Stmt, error) {
	s, err := c.prepare(sql, lib.SQLITE_PREPARE_PERSISTENT)
	if err != nil {
		return nil, fmt.Errorf("prepare %q: %w", sql, err)
	}
	c.stmts = append(c.stmts, s)
	return s, nil
}

func (c *Conn) prepare(sql string, flags uint32) (*Stmt, error) {
	text, err := libc.CString(sql)
	if err != nil {
		return nil, err
	}
	defer libc.Xfree(c.tls, text)
	out := libc.Xcalloc(c.tls, 1, types.Size_t(unsafe.Sizeof(uintptr(0))))
	if out == 0 {
		return nil, errors.New("out of memory")
	}
	defer libc.Xfree(c.tls, out)
	if rc := lib.Xsqlite3_prepare_v3(c.tls, c.db, text, -1, flags, out, 0); rc != lib.SQLITE_OK {
		return nil, c.fail(rc)
	}
	return &Stmt{c: c, p: *(*uintptr)(pointer(out))}, nil
}

// Changes returns the number of rows that the last INSERT, UPDATE or DELETE changed.
func (c *Conn) Changes() int { return int(lib.Xsqlite3_changes(c.tls, c.db)) }

// InTransaction reports whether a transaction is open.
func (c *Conn) InTransaction() bool { return lib.Xsqlite3_get_autocommit(c.tls, c.db) == 0 }

// ReadOnly reports whether the file could only be opened for reading.
func (c *Conn) ReadOnly() bool { return lib.Xsqlite3_db_readonly(c.tls, c.db, 0) == 1 }

// pointer converts an address outside Go's heap.
func pointer(p uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }
