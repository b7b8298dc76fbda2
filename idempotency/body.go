package idempotency

import (
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/linger"
)

// errTooLarge: the body is longer than Options.MaxBody.
var errTooLarge = errors.New("the body is longer than allowed")

// errStream: the request waits for an answer before it goes on.
var errStream = errors.New("the request is a stream, which cannot be guarded")

// A body is a request's body, read as a whole before anything runs: up to
// Options.MaxMemory in memory, what is longer in a temporary file as well. It
// is what the handler reads.
type body struct {
	timed  timedReader // while it is read
	mu     sync.Mutex
	memory []byte   // the beginning, in a pooled buffer
	file   *os.File // the rest; nil when there is none
	path   string   // of the file, while it has a name
	size   int64
	digest [sha256.Size]byte
	off    int64
	closed bool // by the handler
	over   bool // the buffer is somebody else's now
}

// timedReader is a body whose sender may pause for so long and no longer.
type timedReader struct {
	w       http.ResponseWriter
	r       *http.Request
	silence time.Duration
}

// Read reads from the body. The error of a pause that was too long is
// os.ErrDeadlineExceeded.
func (r *timedReader) Read(p []byte) (int, error) {
	end := time.Now().Add(r.silence)
	linger.Within(r.w, r.r, end)
	n, err := r.r.Body.Read(p)
	switch {
	case err == io.EOF:
		linger.Within(r.w, r.r, time.Time{}) // the next request has a time of its own
	case err != nil && !time.Now().Before(end):
		err = os.ErrDeadlineExceeded // within a trailer net/http says something else
	}
	return n, err
}

// read reads all of r's body. buf is where its beginning goes; the grown buffer
// is returned even when reading fails.
func (b *body) read(w http.ResponseWriter, r *http.Request, o *Options, buf []byte) (grown []byte, err error) {
	b.memory = buf[:0]
	if r.Body == nil || r.Body == http.NoBody {
		b.digest = sha256.Sum256(nil)
		return b.memory, nil
	}
	if r.ContentLength > o.MaxBody {
		return b.memory, errTooLarge
	}
	b.timed = timedReader{w: w, r: r, silence: o.BodyTimeout}
	in := io.Reader(&b.timed)
	switch protocolOf(r.Header) {
	case grpc, grpcWeb, connectStream:
		unary := &unaryReader{timedReader: b.timed}
		in = unary
		defer func() {
			if errors.Is(err, os.ErrDeadlineExceeded) && unary.begun() {
				err = errStream
			}
		}()
	}
	inMemory := min(o.MaxMemory, o.MaxBody)
	if n := r.ContentLength; n > 0 && n <= inMemory && int64(cap(b.memory)) <= n {
		// One more byte, so that the end is seen without growing.
		b.memory = make([]byte, 0, n+1)
	}
	ended := false
	for !ended && int64(len(b.memory)) <= inMemory {
		if len(b.memory) == cap(b.memory) {
			b.memory = append(b.memory, 0)[:len(b.memory)]
		}
		n, err := in.Read(b.memory[len(b.memory):cap(b.memory)])
		b.memory = b.memory[:len(b.memory)+n]
		if err == io.EOF {
			ended = true
		} else if err != nil {
			return b.memory, err
		}
	}
	b.size = int64(len(b.memory))
	switch {
	case b.size > o.MaxBody:
		return b.memory, errTooLarge
	case ended:
		b.digest = sha256.Sum256(b.memory)
		return b.memory, nil
	}
	return b.memory, b.spill(in, o)
}

// spill reads the rest into a temporary file.
func (b *body) spill(rest io.Reader, o *Options) error {
	file, err := os.CreateTemp(o.TempDir, "dibs-body-")
	if err != nil {
		return &spillError{err}
	}
	b.file, b.path = file, file.Name()
	if os.Remove(b.path) == nil {
		b.path = "" // without a name it goes when the process does
	}
	h := sha256.New()
	h.Write(b.memory)
	spilled := &spillWriter{file: file, hash: h}
	n, err := io.Copy(spilled, io.LimitReader(rest, o.MaxBody-b.size+1))
	b.size += n
	switch {
	case err != nil:
		return err
	case b.size > o.MaxBody:
		return errTooLarge
	}
	h.Sum(b.digest[:0])
	return nil
}

// spillError is a temporary file's failure: ours, not the client's.
type spillError struct{ err error }

func (e *spillError) Error() string { return "idempotency: a body could not be kept: " + e.err.Error() }
func (e *spillError) Unwrap() error { return e.err }

// spillWriter tells the file's failures from the connection's.
type spillWriter struct {
	file *os.File
	hash hash.Hash
}

func (w *spillWriter) Write(p []byte) (int, error) {
	n, err := w.file.Write(p)
	w.hash.Write(p[:n])
	if err != nil {
		err = &spillError{err}
	}
	return n, err
}

// sum returns the SHA-256 digest of the body.
func (b *body) sum() [sha256.Size]byte { return b.digest }

// section returns a reader of the body that does not move the handler's.
func (b *body) section() *io.SectionReader { return io.NewSectionReader(b, 0, b.size) }

// ReadAt reads from any place of the body.
func (b *body) ReadAt(p []byte, off int64) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.readAt(p, off)
}

func (b *body) readAt(p []byte, off int64) (n int, err error) {
	if b.over {
		return 0, http.ErrBodyReadAfterClose
	}
	for n < len(p) && err == nil {
		var m int
		switch at := off + int64(n); {
		case at >= b.size:
			err = io.EOF
		case at < int64(len(b.memory)):
			m = copy(p[n:], b.memory[at:])
		default:
			m, err = b.file.ReadAt(p[n:min(int64(len(p)), int64(n)+b.size-at)], at-int64(len(b.memory)))
			switch {
			case err == io.EOF && m > 0:
				err = nil
			case err == io.EOF:
				err = io.ErrUnexpectedEOF // somebody cut the file
			}
		}
		n += m
	}
	return n, err
}

// Read reads on, as the handler does.
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := b.readAt(p, b.off)
	b.off += int64(n)
	if n > 0 && err == io.EOF {
		err = nil
	}
	return n, err
}

// Close ends the handler's reading.
func (b *body) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return nil
}

// remove takes the buffer and the file away: the request is over, and whoever
// still reads gets an error.
func (b *body) remove() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	b.memory = nil
	if b.file == nil {
		return
	}
	// Nothing is left to be written, so closing cannot lose anything.
	_ = b.file.Close()
	if b.path != "" {
		_ = os.Remove(b.path)
	}
	b.file = nil
}
