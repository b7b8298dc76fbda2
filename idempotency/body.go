package idempotency

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"os"

	"github.com/dibs-go/dibs/internal/content"
	"github.com/dibs-go/dibs/internal/dialect"
	"github.com/dibs-go/dibs/internal/memory"
	"github.com/dibs-go/dibs/internal/slow"
)

// errTooLarge: the body is longer than Options.MaxBody, or what it contains is.
var errTooLarge = content.ErrTooLarge

// errStream: the request waits for an answer before it continues.
var errStream = errors.New("the request is a stream, which cannot be guarded")

// A body is a request's body, read whole before the handler runs: in memory, or in a temporary file
// if it is longer than MaxMemory.
type body struct {
	bytes  []byte
	file   *os.File // nil: in memory
	path   string   // of the file, while it has a name
	size   int64
	room   memory.Account // of the memory
	onDisk memory.Account // of the file
	within memory.Account // of memory for what is made of it while it is looked into
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
	paced := slow.NewReader(w, r, o.BodyTimeout, slow.LeastRate)
	in := io.Reader(paced)
	if dialect.MayStream(r.Header) {
		in = &unaryReader{Reader: paced}
	}
	limit := min(o.maxMemory, o.MaxBody)
	size := min(511, limit)
	if n := r.ContentLength; n >= 0 {
		size = min(n, limit, inAdvance) // the rest when it arrives
	}
	read, ended := make([]byte, 0, size+1), false // one more, to see the end without growing
	for !ended && int64(len(read)) <= limit {
		if int64(len(read)) > size {
			more := min(size+1, limit-size)
			if n := r.ContentLength; size < n {
				more = min(more, n-size)
			}
			size += more
			read = append(make([]byte, 0, size+1), read...)
		}
		n, err := in.Read(read[len(read):cap(read)])
		read = read[:len(read)+n]
		if !b.room.Try(int64(n)) {
			return errMaxBodyMemory
		}
		if ended = err == io.EOF; err != nil && !ended {
			return err
		}
	}
	b.size = int64(len(read))
	switch {
	case b.size > o.MaxBody:
		return errTooLarge
	case !ended:
		return b.spill(read, in, o)
	}
	b.bytes = read
	return nil
}

// inAdvance is how much memory a body has, in bytes, before any of it is there.
const inAdvance = 16 << 10

// spill writes what was read of the body, and then its rest, into a temporary file.
func (b *body) spill(read []byte, in io.Reader, o *Options) (err error) {
	if b.file, err = os.CreateTemp("", "dibs-body-"); err != nil {
		return err
	}
	if b.path = b.file.Name(); os.Remove(b.path) == nil {
		b.path = "" // a file without a name ends with the process
	}
	to := countedFile{b.file, &b.onDisk}
	if _, err = to.Write(read); err != nil {
		return err
	}
	b.room.Close()
	rest, err := io.Copy(to, io.LimitReader(in, o.MaxBody+1-b.size))
	if b.size += rest; err == nil && b.size > o.MaxBody {
		err = errTooLarge
	}
	return err
}

// A countedFile counts what is written into it before that is on the disk.
type countedFile struct {
	file *os.File
	room *memory.Account
}

// Write returns errMaxBodyMemory if there is no room.
func (f countedFile) Write(p []byte) (int, error) {
	if !f.room.Try(int64(len(p))) {
		return 0, errMaxBodyMemory
	}
	return f.file.Write(p)
}

// reader returns a new reader of the body.
func (b *body) reader() *io.SectionReader {
	if b.file != nil {
		return io.NewSectionReader(b.file, 0, b.size)
	}
	return io.NewSectionReader(bytes.NewReader(b.bytes), 0, b.size)
}

// inside returns a new reader of the body for functions that look into it. The caller ends
// b.within after them.
func (b *body) inside() *insideReader { return &insideReader{b.reader(), &b.within, b.room.Held()} }

// sum returns the SHA-256 digest of the body.
func (b *body) sum() (sum [sha256.Size]byte, err error) {
	if b.file == nil {
		return sha256.Sum256(b.bytes), nil
	}
	h := sha256.New()
	_, err = io.Copy(h, b.reader())
	h.Sum(sum[:0])
	return sum, err
}

// remove removes the temporary file and gives the memory back: the request is over.
func (b *body) remove() {
	b.bytes = nil
	b.room.Close()
	b.within.Close()
	b.onDisk.Close()
	if b.file == nil {
		return
	}
	_ = b.file.Close() // nothing is left to be written
	if b.path != "" {
		_ = os.Remove(b.path)
	}
	b.file = nil
}

// An insideReader is a body that is looked into, with what the functions that do so may take of
// Options.MaxBodyMemory.
type insideReader struct {
	*io.SectionReader
	room *memory.Account
	body int64 // what the body itself has taken
}

// Take implements content.Taker.
func (r *insideReader) Take(n int64) error {
	switch {
	case r.room.Try(n):
		return nil
	case r.body+r.room.Held()+n > r.room.Most():
		return errTooLarge // whatever else is given back
	}
	return errMaxBodyMemory
}
