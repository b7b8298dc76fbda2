package content

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"io/fs"
	"strings"
)

// maxContent is how many bytes a compressed body may hold to be looked into. It is small, because
// gzip makes a thousand bytes of one, and each takes time to be looked at.
const maxContent = 256 << 10

// What decompressing takes, in bytes, beside the content.
const decompressing = 64 << 10

// ErrTooLarge: the content is longer, or has more parts, than allowed.
var ErrTooLarge = errors.New("the body is longer than allowed")

// ErrUnreadable: the body cannot be looked into.
var ErrUnreadable = errors.New("the body is compressed in a way that is not known, or is damaged")

// A Taker is a body that counts the memory that is taken for what it contains.
type Taker interface {
	// Take takes memory for n bytes. It returns ErrTooLarge if there is never so much, and another error
	// if there is not now.
	Take(n int64) error
}

// A Reader is what a body holds, decompressed, for a parser that reads it part by part. It
// takes memory for the part that the parser holds.
type Reader struct {
	in    io.Reader
	take  func(n int64) error
	taken int64 // for what the parser holds
	read  int64
	done  int64        // how much the parser does not hold any more
	index func() int64 // in place of done
	err   error
}

// Err returns why the content cannot be read, in contrast to why it cannot be parsed: ErrTooLarge, the
// error of the Taker or an *fs.PathError; nil if it can.
func (c *Reader) Err() error { return c.err }

// free takes no memory.
func free(int64) error { return nil }

// Open returns what a body contains, by the lines of its Content-Encoding. It returns ErrUnreadable,
// ErrTooLarge if a compressed body contains more than maxContent, the error of a body that is a Taker, or
// an *fs.PathError.
func Open(encodings []string, body io.ReadSeeker) (*Reader, error) {
	c := &Reader{in: body, take: free}
	if t, ok := body.(Taker); ok {
		c.take = t.Take
	}
	encoding := ""
	switch len(encodings) {
	case 0:
	case 1:
		encoding = encodings[0]
	default:
		return nil, ErrUnreadable
	}
	if IsIdentity(encoding) {
		return c, nil
	}
	if err := c.take(decompressing); err != nil {
		return nil, err
	}
	// The length is found first, so that nothing is parsed of a body that holds too much.
	if _, err := Decompress(encoding, body, io.Discard, maxContent); err != nil {
		return nil, err
	}
	if _, err := body.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	in, err := decompressor(encoding, body)
	c.in = in
	return c, err
}

// Of returns the content of a text that is in memory and was counted.
func Of(text []byte) *Reader { return &Reader{in: bytes.NewReader(text), take: free} }

// Inside returns a part of the content, which a parser holds once more.
func (c *Reader) Inside(part []byte) *Reader {
	return &Reader{in: bytes.NewReader(part), take: c.take}
}

// Hold takes memory for n bytes that the parser holds: in a buffer, in the one that replaces it
// when it grows, and in what is made of them.
func (c *Reader) Hold(n int64) error {
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
func (c *Reader) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	c.read += int64(n)
	done := c.done
	if c.index != nil {
		done = c.index()
	}
	if full := c.Hold(c.read - done); full != nil {
		err = full
	}
	if err != nil && err != io.EOF {
		c.err = err
	}
	return n, err
}

// IsIdentity reports whether a Content-Encoding says that nothing is encoded.
func IsIdentity(encoding string) bool {
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
		err = ErrUnreadable
	}
	return in, contentError(err)
}

// Decompress writes what a compressed body holds. It returns ErrTooLarge if that is more than most
// bytes.
func Decompress(encoding string, body io.Reader, w io.Writer, most int64) (n int64, err error) {
	in, err := decompressor(encoding, body)
	if err != nil {
		return 0, err
	}
	if n, err = io.Copy(w, io.LimitReader(in, most+1)); err == nil && n > most {
		err = ErrTooLarge
	}
	return n, contentError(err)
}

// contentError returns ErrUnreadable for a damaged body.
func contentError(err error) error {
	if _, file := errors.AsType[*fs.PathError](err); err == nil || file || err == ErrTooLarge {
		return err
	}
	return ErrUnreadable
}
