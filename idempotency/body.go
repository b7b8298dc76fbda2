package idempotency

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/dibs-go/dibs/internal/linger"
)

// errTooLarge: the body is longer than Options.MaxBody.
var errTooLarge = errors.New("the body is longer than allowed")

// errStream: the request waits for an answer before it goes on.
var errStream = errors.New("the request is a stream, which cannot be guarded")

// A body is a request's body, read whole before the handler runs: in memory, or in a temporary file
// if it is longer than Options.MaxMemory.
type body struct {
	timed  timedReader // while it is read
	memory []byte
	file   *os.File // nil: in memory
	path   string   // of the file, while it has a name
	size   int64
	room   reservation // of the memory
	within reservation // of memory for what is made of it while it is looked into
}

// timedReader is a body whose sender may pause no longer than pause, and must send leastRate after
// its first pause.
type timedReader struct {
	w     http.ResponseWriter
	r     *http.Request
	pause time.Duration
	began time.Time // when reading began
	n     int64     // bytes so far
}

// leastRate is how many bytes a second a body must have, beside a pause. A sender of a byte a second
// would otherwise keep memory for days.
const leastRate = 500

// Read reads from the body. After a pause that was too long it returns os.ErrDeadlineExceeded.
func (r *timedReader) Read(p []byte) (int, error) {
	now := time.Now()
	if r.began.IsZero() {
		r.began = now
	}
	end := now.Add(r.pause)
	if slow := r.began.Add(r.pause + time.Duration(r.n/leastRate)*time.Second); slow.Before(end) {
		end = slow
	}
	linger.Within(r.w, r.r, end)
	n, err := r.r.Body.Read(p)
	r.n += int64(n)
	switch {
	case err == io.EOF:
		linger.Within(r.w, r.r, time.Time{}) // the deadline must not meet the next request
	case err != nil && !time.Now().Before(end):
		err = os.ErrDeadlineExceeded // within a trailer net/http returns another error
	}
	return n, err
}

// read reads all of r's body. It returns errTooLarge, errMaxBodyMemory, errStream, an
// *fs.PathError of the temporary file, or the connection's error.
func (b *body) read(w http.ResponseWriter, r *http.Request, o *Options) error {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	if r.ContentLength > o.MaxBody {
		return errTooLarge
	}
	b.timed = timedReader{w: w, r: r, pause: o.BodyTimeout}
	in := io.Reader(&b.timed)
	switch protocolOf(r.Header) {
	case grpc, grpcWeb, connectStream:
		in = &unaryReader{timedReader: b.timed}
	}
	limit := min(o.MaxMemory, o.MaxBody)
	size := min(511, limit)
	if n := r.ContentLength; n >= 0 {
		size = min(n, limit, inAdvance) // the rest when it arrives
	}
	if !b.room.grow(size) {
		return errMaxBodyMemory
	}
	memory, ended := make([]byte, 0, size+1), false // one more, to see the end without growing
	for !ended && int64(len(memory)) <= limit {
		if int64(len(memory)) > size {
			more := min(size+1, limit-size)
			if n := r.ContentLength; size < n {
				more = min(more, n-size)
			}
			if !b.room.grow(more) {
				return errMaxBodyMemory
			}
			size += more
			memory = append(make([]byte, 0, size+1), memory...)
		}
		n, err := in.Read(memory[len(memory):cap(memory)])
		memory = memory[:len(memory)+n]
		if ended = err == io.EOF; err != nil && !ended {
			return err
		}
	}
	b.size = int64(len(memory))
	switch {
	case b.size > o.MaxBody:
		return errTooLarge
	case !ended:
		return b.spill(memory, in, o)
	}
	b.memory = memory
	return nil
}

// inAdvance is how much memory is reserved, in bytes, before any of a body is there.
const inAdvance = 16 << 10

// spill writes what was read of the body, and then its rest, into a temporary file.
func (b *body) spill(memory []byte, in io.Reader, o *Options) (err error) {
	if b.file, err = os.CreateTemp(o.TempDir, "dibs-body-"); err != nil {
		return err
	}
	if b.path = b.file.Name(); os.Remove(b.path) == nil {
		b.path = "" // a file without a name ends with the process
	}
	if _, err = b.file.Write(memory); err != nil {
		return err
	}
	b.room.end()
	rest, err := io.Copy(b.file, io.LimitReader(in, o.MaxBody+1-b.size))
	if b.size += rest; err == nil && b.size > o.MaxBody {
		err = errTooLarge
	}
	return err
}

// reader returns a new reader of the body.
func (b *body) reader() *io.SectionReader {
	if b.file != nil {
		return io.NewSectionReader(b.file, 0, b.size)
	}
	return io.NewSectionReader(bytes.NewReader(b.memory), 0, b.size)
}

// inside returns a new reader of the body for functions that look into it. The caller ends
// b.within after them.
func (b *body) inside() *insideReader { return &insideReader{b.reader(), &b.within, b.room.n} }

// sum returns the SHA-256 digest of the body.
func (b *body) sum() (sum [sha256.Size]byte, err error) {
	if b.file == nil {
		return sha256.Sum256(b.memory), nil
	}
	h := sha256.New()
	_, err = io.Copy(h, b.reader())
	h.Sum(sum[:0])
	return sum, err
}

// remove removes the temporary file and gives the memory back: the request is over.
func (b *body) remove() {
	b.memory = nil
	b.room.end()
	b.within.end()
	if b.file == nil {
		return
	}
	_ = b.file.Close() // nothing is left to be written
	if b.path != "" {
		_ = os.Remove(b.path)
	}
	b.file = nil
}
