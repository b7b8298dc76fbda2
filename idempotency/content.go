package idempotency

import (
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"net/http"
	"strings"
)

// maxContent is how many bytes a decompressed body may have to be looked into.
const maxContent = 64 << 20

// errNoContent: the body cannot be looked into.
var errNoContent = errors.New("the body is compressed in a way that is not known, or too long")

// contentOf returns what the body holds, decompressed if Content-Encoding is gzip or
// deflate.
func contentOf(r *http.Request, body io.Reader) ([]byte, error) {
	if len(r.Header["Content-Encoding"]) > 1 {
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
	if err == nil {
		content, err = io.ReadAll(io.LimitReader(body, maxContent+1))
	}
	if err == nil && len(content) > maxContent {
		err = errNoContent
	}
	return content, err
}
