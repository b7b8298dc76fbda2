// Package slow serves clients that are slow: it reads a body that comes slowly, sends an answer that
// is taken slowly, and sends an answer while the client still sends its body.
package slow

import (
	"net/http"
	"strings"
	"time"
)

// Bounds for the rest of a request's body.
const (
	maxBytes = 64 << 20
	maxTime  = 30 * time.Second
	// silence is the longest pause of the client.
	silence = 5 * time.Second
)

// Answer calls write, which writes the whole answer, sends it, and then reads and drops
// the rest of the body, within bounds. If a server closes the connection while the client still
// sends, the client's system drops the answer (RFC 9112, section 9.6).
func Answer(w http.ResponseWriter, r *http.Request, write func()) {
	switch {
	case r.Body == nil || r.Body == http.NoBody || isGRPC(r):
		write()
		return
	case r.ProtoMajor == 1:
		CloseAfter(w.Header())
		// Otherwise net/http reads a part of the body first.
		_ = http.NewResponseController(w).EnableFullDuplex()
	default:
		// Over HTTP/2 the first read sends "100 Continue", which must not follow the
		// answer.
		Within(w, r, time.Now().Add(silence))
		if _, err := r.Body.Read(make([]byte, 1<<10)); err != nil {
			write()
			return
		}
	}
	write()
	Read(w, r)
}

// CloseAfter makes an HTTP/1 answer the last one of its connection. This is needed for an
// answer before the end of the body, because net/http may read the rest of the body as
// the next request after a read error.
func CloseAfter(h http.Header) { h.Set("Connection", "close") }

// isGRPC reports whether a request is gRPC over HTTP/2. Its answer may be only a trailer,
// which must end the stream. gRPC clients accept an answer before the end of their
// request.
func isGRPC(r *http.Request) bool {
	return r.ProtoMajor == 2 && strings.HasPrefix(strings.ToLower(r.Header.Get("Content-Type")), "application/grpc")
}

// Read is the second half of Answer, for an answer that was written with full duplex and
// CloseAfter.
func Read(w http.ResponseWriter, r *http.Request) {
	if http.NewResponseController(w).Flush() != nil {
		return // the connection is closed
	}
	end := time.Now().Add(maxTime)
	buf := make([]byte, 32<<10)
	for left := maxBytes; left > 0 && time.Now().Before(end); {
		Within(w, r, time.Now().Add(silence))
		n, err := r.Body.Read(buf)
		if left -= n; err != nil {
			break
		}
	}
	Within(w, r, time.Now()) // otherwise net/http reads on without a limit
}

// Within sets the deadline for reading the body. It does nothing if the server has a
// ReadTimeout, because the operator has chosen that limit, or if there is no connection,
// as in a test.
func Within(w http.ResponseWriter, r *http.Request, t time.Time) {
	if s, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok && s.ReadTimeout > 0 {
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(t)
}
