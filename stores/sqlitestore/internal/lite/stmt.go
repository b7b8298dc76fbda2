package lite

import (
	"unsafe"

	"modernc.org/libc"
	"modernc.org/libc/sys/types"
	lib "modernc.org/sqlite/lib"
)

// scratch is the size of a statement's buffer for bytes: enough for the longest key, an
// owner, a token and a fingerprint.
const scratch = 2 << 10

// Stmt is a prepared statement. Read its columns only in the function given to Each.
type Stmt struct {
	c     *Conn
	p     uintptr
	buf   uintptr // scratch bytes for blobs, allocated on first use
	used  uintptr
	large []largeBlob
	noMem bool // a binding ran out of memory
}

// largeBlob is a binding that did not fit into the buffer.
type largeBlob struct {
	param int
	p     uintptr
}

// bind binds the parameters: numbers, bools as 0 or 1, and bytes, which are copied. nil
// bytes become an empty blob.
func (s *Stmt) bind(args []any) {
	for i, arg := range args {
		switch v := arg.(type) {
		case int64:
			lib.Xsqlite3_bind_int64(s.c.tls, s.p, int32(i+1), v)
		case bool:
			var n int64
			if v {
				n = 1
			}
			lib.Xsqlite3_bind_int64(s.c.tls, s.p, int32(i+1), n)
		case []byte:
			s.bindBlob(i+1, unsafe.SliceData(v), len(v))
		case string:
			s.bindBlob(i+1, unsafe.StringData(v), len(v))
		default:
			panic("lite: unknown type of an argument")
		}
	}
}

func (s *Stmt) bindBlob(i int, from *byte, n int) {
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
	// No destructor: the bytes stay until reset.
	lib.Xsqlite3_bind_blob(s.c.tls, s.p, int32(i), to, int32(n), 0)
}

func (s *Stmt) malloc(n int) uintptr {
	p := libc.Xmalloc(s.c.tls, types.Size_t(n))
	s.noMem = s.noMem || p == 0
	return p
}

// Each runs the statement and calls f, which may be nil, at each row, until f returns
// false.
func (s *Stmt) Each(f func(*Stmt) bool, args ...any) error {
	s.bind(args)
	defer s.reset()
	for {
		row, err := s.step()
		if err != nil || !row || f != nil && !f(s) {
			return err
		}
	}
}

// Run runs the statement.
func (s *Stmt) Run(args ...any) error {
	return s.Each(nil, args...)
}

func (s *Stmt) step() (bool, error) {
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

// reset prepares the statement for its next run and frees large bindings.
func (s *Stmt) reset() {
	// It returns the error of step again.
	lib.Xsqlite3_reset(s.c.tls, s.p)
	s.used, s.noMem = 0, false
	for _, b := range s.large {
		lib.Xsqlite3_bind_null(s.c.tls, s.p, int32(b.param))
		libc.Xfree(s.c.tls, b.p)
	}
	s.large = s.large[:0]
}

// Int returns column i (from 0) as a number.
func (s *Stmt) Int(i int) int64 { return lib.Xsqlite3_column_int64(s.c.tls, s.p, int32(i)) }

// Bool reports whether column i is not 0.
func (s *Stmt) Bool(i int) bool { return s.Int(i) != 0 }

// Bytes returns column i without a copy; it is valid until the next row.
func (s *Stmt) Bytes(i int) []byte {
	p := lib.Xsqlite3_column_blob(s.c.tls, s.p, int32(i))
	n := lib.Xsqlite3_column_bytes(s.c.tls, s.p, int32(i))
	if p == 0 || n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(pointer(p)), n)
}

// Copy returns a copy of column i, or nil if it is NULL.
func (s *Stmt) Copy(i int) []byte {
	if lib.Xsqlite3_column_type(s.c.tls, s.p, int32(i)) == lib.SQLITE_NULL {
		return nil
	}
	return append([]byte{}, s.Bytes(i)...)
}

func (s *Stmt) finalize() {
	s.reset()
	lib.Xsqlite3_finalize(s.c.tls, s.p)
	if s.buf != 0 {
		libc.Xfree(s.c.tls, s.buf)
		s.buf = 0
	}
}
