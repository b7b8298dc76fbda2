package lite

import (
	"unsafe"

	"modernc.org/libc"
	"modernc.org/libc/sys/types"
	lib "modernc.org/sqlite/lib"
)

// scratch is what a statement keeps for the bytes it is given: enough for the
// longest key, an owner, a token and a fingerprint.
const scratch = 2 << 10

// Stmt is a prepared statement. Its life is: bind, Step until there is no row,
// Reset. A failed Step needs the Reset as well.
type Stmt struct {
	c     *Conn
	p     uintptr
	buf   uintptr // scratch bytes for blobs, made when first needed
	used  uintptr
	large []largeBlob
	noMem bool // a binding found no memory
}

// largeBlob is a binding that did not fit into the scratch bytes.
type largeBlob struct {
	param int
	p     uintptr
}

// BindInt gives parameter i (from 1) a number.
func (s *Stmt) BindInt(i int, v int64) { lib.Xsqlite3_bind_int64(s.c.tls, s.p, int32(i), v) }

// BindBool gives parameter i 0 or 1.
func (s *Stmt) BindBool(i int, v bool) {
	var n int64
	if v {
		n = 1
	}
	s.BindInt(i, n)
}

// BindNull gives parameter i no value.
func (s *Stmt) BindNull(i int) { lib.Xsqlite3_bind_null(s.c.tls, s.p, int32(i)) }

// BindBlob gives parameter i the bytes of b, which are copied. A nil b is an
// empty blob.
func (s *Stmt) BindBlob(i int, b []byte) { s.bind(i, unsafe.SliceData(b), len(b)) }

// BindString gives parameter i the bytes of v as a blob.
func (s *Stmt) BindString(i int, v string) { s.bind(i, unsafe.StringData(v), len(v)) }

func (s *Stmt) bind(i int, from *byte, n int) {
	if s.buf == 0 {
		if s.buf = s.malloc(scratch); s.buf == 0 {
			return
		}
	}
	to := s.buf + s.used
	if uintptr(n) <= scratch-s.used {
		s.used += uintptr(n)
	} else {
		if to = s.malloc(n); to == 0 {
			return
		}
		s.large = append(s.large, largeBlob{i, to})
	}
	if n > 0 {
		copy(unsafe.Slice((*byte)(pointer(to)), n), unsafe.Slice(from, n))
	}
	// No destructor: the bytes stay until Reset.
	lib.Xsqlite3_bind_blob(s.c.tls, s.p, int32(i), to, int32(n), 0)
}

func (s *Stmt) malloc(n int) uintptr {
	p := libc.Xmalloc(s.c.tls, types.Size_t(n))
	s.noMem = s.noMem || p == 0
	return p
}

// Step runs the statement to its next row and reports whether there is one.
func (s *Stmt) Step() (bool, error) {
	if s.noMem {
		return false, s.c.fail(lib.SQLITE_NOMEM)
	}
	switch rc := lib.Xsqlite3_step(s.c.tls, s.p); rc {
	case lib.SQLITE_ROW:
		return true, nil
	case lib.SQLITE_DONE:
		return false, nil
	default:
		return false, s.c.fail(rc)
	}
}

// Run steps once, resets, and reports whether there was a row.
func (s *Stmt) Run() (bool, error) {
	row, err := s.Step()
	s.Reset()
	return row, err
}

// Reset makes the statement ready to be run again and frees what was bound.
func (s *Stmt) Reset() {
	// It repeats the error that Step has returned already.
	lib.Xsqlite3_reset(s.c.tls, s.p)
	s.used, s.noMem = 0, false
	for _, b := range s.large {
		s.BindNull(b.param)
		libc.Xfree(s.c.tls, b.p)
	}
	s.large = s.large[:0]
}

// Int returns column i (from 0) of the row as a number.
func (s *Stmt) Int(i int) int64 { return lib.Xsqlite3_column_int64(s.c.tls, s.p, int32(i)) }

// Bool reports whether column i is not 0.
func (s *Stmt) Bool(i int) bool { return s.Int(i) != 0 }

// Null reports whether column i has no value.
func (s *Stmt) Null(i int) bool {
	return lib.Xsqlite3_column_type(s.c.tls, s.p, int32(i)) == lib.SQLITE_NULL
}

// Bytes returns column i without copying it: until the next Step or Reset.
func (s *Stmt) Bytes(i int) []byte {
	p := lib.Xsqlite3_column_blob(s.c.tls, s.p, int32(i))
	n := lib.Xsqlite3_column_bytes(s.c.tls, s.p, int32(i))
	if p == 0 || n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(pointer(p)), n)
}

// Copy returns a copy of column i, nil if it has no value and not nil otherwise.
func (s *Stmt) Copy(i int) []byte {
	if s.Null(i) {
		return nil
	}
	return append([]byte{}, s.Bytes(i)...)
}

func (s *Stmt) finalize() {
	s.Reset()
	lib.Xsqlite3_finalize(s.c.tls, s.p)
	if s.buf != 0 {
		libc.Xfree(s.c.tls, s.buf)
		s.buf = 0
	}
}
