package idempotency

import (
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"net/http"
	"strings"
)

// maxContent is how long a body may be, decompressed, to be looked into.
const maxContent = 64 << 20

// errNoContent: the body cannot be looked into.
var errNoContent = errors.New("the body is compressed in a way that is not known, or too long")

// contentOf returns what a body holds: decompressed, if Content-Encoding is gzip or
// deflate.
func contentOf(r *http.Request, body io.Reader) ([]byte, error) {
	encodings := r.Header["Content-Encoding"]
	if len(encodings) > 1 {
		return nil, errNoContent
	}
	return decompressed(r.Header.Get("Content-Encoding"), body)
}

// decompressed returns what a body in the encoding holds.
func decompressed(encoding string, body io.Reader) (content []byte, err error) {
	switch strings.ToLower(strings.TrimSpace(encoding)) {
	case "identity", "":
	case "gzip", "x-gzip":
		body, err = gzip.NewReader(body)
	case "deflate":
		body, err = zlib.NewReader(body)
	default:
		return nil, errNoContent
	}
	if err != nil {
		return nil, err
	}
	if content, err = io.ReadAll(io.LimitReader(body, maxContent+1)); err != nil {
		return nil, err
	}
	if len(content) > maxContent {
		return nil, errNoContent
	}
	return content, nil
}
