package pgstore

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/dibs-go/dibs"
)

// array is a parameter that is an array with one element for each element of a
// call, in PostgreSQL's binary form.
type array struct {
	b       []byte
	element uint32
	n       int
	nulls   bool
}

// arrayHeader is what comes before the elements: dimensions, whether there are
// NULLs, the type of the elements, how many there are, and what the first one's
// number is.
const arrayHeader = 20

// newArray returns an empty array with room for n elements of so many bytes.
func newArray(element uint32, n, bytes int) array {
	return array{b: make([]byte, arrayHeader, arrayHeader+n*(4+bytes)), element: element}
}

func (a *array) bytes(v []byte) {
	a.n++
	if v == nil {
		a.nulls = true
		a.b = binary.BigEndian.AppendUint32(a.b, 1<<32-1)
		return
	}
	a.b = binary.BigEndian.AppendUint32(a.b, uint32(len(v)))
	a.b = append(a.b, v...)
}

func (a *array) key(k dibs.Key) {
	a.n++
	a.b = binary.BigEndian.AppendUint32(a.b, uint32(1+len(k.Namespace)+len(k.Name)))
	a.b = appendKey(a.b, k)
}

// token appends a token, and NULL for a zero one.
func (a *array) token(t *dibs.Token) {
	if t.IsZero() {
		a.bytes(nil)
		return
	}
	a.bytes(t[:])
}

// fingerprint appends a fingerprint, and NULL for none.
func (a *array) fingerprint(f *dibs.Fingerprint) {
	if f.IsZero() {
		a.bytes(nil)
		return
	}
	a.bytes(f[:])
}

func (a *array) int16(v int16) {
	a.n++
	a.b = append(a.b, 0, 0, 0, 2)
	a.b = binary.BigEndian.AppendUint16(a.b, uint16(v))
}

func (a *array) int32(v int32) {
	a.n++
	a.b = append(a.b, 0, 0, 0, 4)
	a.b = binary.BigEndian.AppendUint32(a.b, uint32(v))
}

func (a *array) int64(v int64) {
	a.n++
	a.b = append(a.b, 0, 0, 0, 8)
	a.b = binary.BigEndian.AppendUint64(a.b, uint64(v))
}

func (a *array) bool(v bool) {
	a.n++
	a.b = append(a.b, 0, 0, 0, 1, 0)
	if v {
		a.b[len(a.b)-1] = 1
	}
}

// duration appends a duration in microseconds.
func (a *array) duration(d time.Duration) { a.int64(micros(d)) }

// encode completes the array.
func (a *array) encode() []byte {
	h := a.b[:0]
	h = binary.BigEndian.AppendUint32(h, 1)
	if a.nulls {
		h = binary.BigEndian.AppendUint32(h, 1)
	} else {
		h = binary.BigEndian.AppendUint32(h, 0)
	}
	h = binary.BigEndian.AppendUint32(h, a.element)
	h = binary.BigEndian.AppendUint32(h, uint32(a.n))
	binary.BigEndian.AppendUint32(h, 1)
	return a.b
}

// century is the longest time that is told the server.
const century = 100 * 365 * 24 * time.Hour

// micros turns a duration into the server's unit, at least 1 if it is anything.
func micros(d time.Duration) int64 {
	return int64((min(d, century) + time.Microsecond - 1) / time.Microsecond)
}

// reading goes through the columns of a row, in binary form. The first error
// stays.
type reading struct {
	columns [][]byte
	err     error
}

func (r *reading) next() []byte {
	if len(r.columns) == 0 {
		r.err = fmt.Errorf("pgstore: the server's answer has too few columns")
		return nil
	}
	v := r.columns[0]
	r.columns = r.columns[1:]
	return v
}

// int reads a number of any size; NULL is 0.
func (r *reading) int() int64 {
	switch v := r.next(); len(v) {
	case 0:
		return 0
	case 2:
		return int64(int16(binary.BigEndian.Uint16(v)))
	case 4:
		return int64(int32(binary.BigEndian.Uint32(v)))
	case 8:
		return int64(binary.BigEndian.Uint64(v))
	default:
		r.err = fmt.Errorf("pgstore: the server answered a number of %d bytes", len(v))
		return 0
	}
}

func (r *reading) bool() bool {
	v := r.next()
	return len(v) == 1 && v[0] == 1
}

func (r *reading) duration() time.Duration { return time.Duration(r.int()) * time.Microsecond }

// bytes returns a copy; NULL is nil.
func (r *reading) bytes() []byte {
	v := r.next()
	if v == nil {
		return nil
	}
	return append(make([]byte, 0, len(v)), v...)
}

func (r *reading) token() (t dibs.Token) {
	copy(t[:], r.next())
	return t
}

// binaryBool is a boolean in binary form.
func binaryBool(b bool) []byte {
	if b {
		return []byte{1}
	}
	return []byte{0}
}
