package idempotency

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"sync"
)

// worthDeflating is from how many bytes on a message is compressed: below, it
// takes longer than it saves, and the message is put into stored blocks, which
// are deflate streams like any other.
const worthDeflating = 4 << 10

// maxBlock is how many bytes a stored block of RFC 1951 can have.
const maxBlock = 1<<16 - 1

// appendDeflated appends the message as a deflate stream.
func appendDeflated(dst, message []byte) []byte {
	if len(message) < worthDeflating || looksDense(message) {
		return appendStored(dst, message)
	}
	w := deflaters.Get().(*deflater)
	defer deflaters.Put(w)
	w.out = appender{dst}
	w.flate.Reset(&w.out)
	// An appender takes everything.
	_, _ = w.flate.Write(message)
	_ = w.flate.Close()
	dst, w.out.b = w.out.b, nil
	return dst
}

// looksDense reports whether compressing would be in vain, by a sample from the
// middle: what is compressed or encrypted already uses all bytes alike.
func looksDense(message []byte) bool {
	const sample = 1 << 10
	var seen [256]bool
	distinct := 0
	at := (len(message) - sample) / 2
	for _, c := range message[at : at+sample] {
		if !seen[c] {
			seen[c] = true
			distinct++
		}
	}
	// 1,024 bytes by chance have 251 of the 256 values; text has under 100.
	return distinct > 230
}

func appendStored(dst, message []byte) []byte {
	dst = slices.Grow(dst, len(message)+5*(len(message)/maxBlock+1))
	for {
		n := min(len(message), maxBlock)
		final := byte(0)
		if n == len(message) {
			final = 1
		}
		dst = append(dst, final)
		dst = binary.LittleEndian.AppendUint16(dst, uint16(n))
		dst = binary.LittleEndian.AppendUint16(dst, ^uint16(n))
		dst = append(dst, message[:n]...)
		message = message[n:]
		if final == 1 {
			return dst
		}
	}
}

// inflate appends what the record has to dst: at most limit bytes, or ErrRecord.
// A record of one stored block is not copied: the result then points into it.
func inflate(dst, record []byte, limit int64) ([]byte, error) {
	if message, ok := soleBlock(record); ok {
		if int64(len(message)) > limit {
			return nil, ErrRecord
		}
		return message, nil
	}
	r := inflaters.Get().(*inflater)
	defer inflaters.Put(r)
	r.in.Reset(record)
	if err := r.flate.(flate.Resetter).Reset(&r.in, nil); err != nil {
		return nil, errors.Join(ErrRecord, err)
	}
	start := len(dst)
	for {
		if len(dst) == cap(dst) {
			dst = slices.Grow(dst, max(512, len(record)))
		}
		n, err := r.flate.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		switch {
		case int64(len(dst)-start) > limit:
			return nil, ErrRecord
		case err == io.EOF && r.in.Len() == 0:
			r.in.Reset(nil)
			return dst, nil
		case err == io.EOF:
			return nil, ErrRecord // something follows the stream
		case err != nil:
			return nil, errors.Join(ErrRecord, err)
		}
	}
}

// soleBlock returns the message of a record that is one stored block.
func soleBlock(record []byte) (message []byte, ok bool) {
	if len(record) < 5 || record[0] != 1 {
		return nil, false
	}
	n := binary.LittleEndian.Uint16(record[1:])
	if ^n != binary.LittleEndian.Uint16(record[3:]) || len(record) != 5+int(n) {
		return nil, false
	}
	return record[5:], true
}

// deflater is a compressor with its output; both are reused.
type deflater struct {
	flate *flate.Writer
	out   appender
}

type appender struct{ b []byte }

func (a *appender) Write(p []byte) (int, error) {
	a.b = append(a.b, p...)
	return len(p), nil
}

var deflaters = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, flate.BestSpeed)
	if err != nil {
		panic(err) // the level is one that there is
	}
	return &deflater{flate: w}
}}

type inflater struct {
	flate io.ReadCloser
	in    bytes.Reader
}

var inflaters = sync.Pool{New: func() any { return &inflater{flate: flate.NewReader(nil)} }}
