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
	if len(encodings) == 1 {
		var err error
		switch strings.ToLower(strings.TrimSpace(encodings[0])) {
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
	}
	content, err := io.ReadAll(io.LimitReader(body, maxContent+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxContent {
		return nil, errNoContent
	}
	return content, nil
}
