package idempotency

import (
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"strings"
)

// maxContent is how many bytes a compressed body may hold to be looked into. It is small, because
// gzip makes a thousand bytes of one, and each takes time to be looked at.
const maxContent = 256 << 10

// What decompressing takes, in bytes, beside the content.
const decompressing = 64 << 10

// errNoContent: the body cannot be looked into.
var errNoContent = errors.New("the body is compressed in a way that is not known, or is damaged")

// An insideReader is a body that is looked into, with what the functions that do so may take of
// Options.MaxBodyMemory.
type insideReader struct {
	*io.SectionReader
	room *reservation
	body int64 // what the body itself has taken
}

// contents is what a body holds, decompressed, for a parser that reads it part by part. It
// reserves memory for the part that the parser holds.
//
// Its err tells an error of reading from one of parsing: errTooLarge, errMaxBodyMemory or an
// *fs.PathError.
type contents struct {
	in    io.Reader
	room  *reservation
	body  int64 // what the body itself has taken of the same capacity
	taken int64 // of room, for what the parser holds
	read  int64
	done  int64        // how much the parser does not hold any more
	index func() int64 // in place of done
	err   error
}

// contentOf returns what the body holds. It returns errNoContent, errTooLarge if a compressed body
// holds more than maxContent, errMaxBodyMemory, or an *fs.PathError.
func contentOf(r *http.Request, body io.ReadSeeker) (*contents, error) {
	c := &contents{in: body, room: new(reservation)}
	if inside, ok := body.(*insideReader); ok {
		c.room, c.body = inside.room, inside.body
	}
	encodings := r.Header["Content-Encoding"]
	if len(encodings) > 1 {
		return nil, errNoContent
	}
	encoding := r.Header.Get("Content-Encoding")
	if isIdentity(encoding) {
		return c, nil
	}
	if err := c.take(decompressing); err != nil {
		return nil, err
	}
	// The length is found first, so that nothing is parsed of a body that holds too much.
	if _, err := decompress(encoding, body, io.Discard, maxContent); err != nil {
		return nil, err
	}
	if _, err := body.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	in, err := decompressor(encoding, body)
	c.in = in
	return c, err
}

// take reserves memory for n bytes.
func (c *contents) take(n int64) error {
	switch {
	case c.room.grow(n):
		return nil
	case c.body+c.room.n+n > c.room.of.most:
		return errTooLarge // whatever else is given back
	}
	return errMaxBodyMemory
}

// hold reserves memory for n bytes that the parser holds: in a buffer, in the one that replaces it
// when it grows, and in what is made of them.
func (c *contents) hold(n int64) error {
	more := 3*n - c.taken
	if more <= 0 {
		return nil
	}
	err := c.take(more)
	if err == nil {
		c.taken += more
	}
	return err
}

// Read reads from the content.
func (c *contents) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	c.read += int64(n)
	done := c.done
	if c.index != nil {
		done = c.index()
	}
	if full := c.hold(c.read - done); full != nil {
		err = full
	}
	if err != nil && err != io.EOF {
		c.err = err
	}
	return n, err
}

// isIdentity reports whether a Content-Encoding says that nothing is encoded.
func isIdentity(encoding string) bool {
	encoding = strings.TrimSpace(encoding)
	return encoding == "" || strings.EqualFold(encoding, "identity")
}

// decompressor returns what decompresses a body.
func decompressor(encoding string, body io.Reader) (in io.Reader, err error) {
	switch strings.ToLower(strings.TrimSpace(encoding)) {
	case "gzip", "x-gzip":
		in, err = gzip.NewReader(body)
	case "deflate":
		in, err = zlib.NewReader(body)
	default:
		err = errNoContent
	}
	return in, contentError(err)
}

// decompress writes what a compressed body holds. It returns errTooLarge if that is more than most
// bytes.
func decompress(encoding string, body io.Reader, w io.Writer, most int64) (n int64, err error) {
	in, err := decompressor(encoding, body)
	if err != nil {
		return 0, err
	}
	if n, err = io.Copy(w, io.LimitReader(in, most+1)); err == nil && n > most {
		err = errTooLarge
	}
	return n, contentError(err)
}

// contentError returns errNoContent for a damaged body.
func contentError(err error) error {
	if _, file := errors.AsType[*fs.PathError](err); err == nil || file || err == errTooLarge {
		return err
	}
	return errNoContent
}
