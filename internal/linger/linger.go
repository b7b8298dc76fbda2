// Package linger answers a request whose body has not been read, so that the answer
// arrives. A server that closes the connection while the client still sends makes the
// client's system drop the answer (RFC 9112, section 9.6).
package linger

import (
	"net/http"
	"strings"
	"time"
)

// Bounds of what is read of a body that nobody wants.
const (
	maxBytes = 64 << 20
	maxTime  = 30 * time.Second
	// silence is how long the client may send nothing.
	silence = 5 * time.Second
)

// Answer calls write, which writes the whole answer, sends it, and then reads on and throws
// away what the client sends, within bounds.
func Answer(w http.ResponseWriter, r *http.Request, write func()) {
	switch {
	case r.Body == nil || r.Body == http.NoBody || isGRPC(r):
		write()
		return
	case r.ProtoMajor == 1:
		CloseAfter(w.Header())
		// Without it net/http reads a part of the body first.
		_ = http.NewResponseController(w).EnableFullDuplex()
	default:
		// Over HTTP/2 the first read sends the "100 Continue" that the client may wait
		// for, which must not follow the answer.
		Within(w, r, time.Now().Add(silence))
		if _, err := r.Body.Read(make([]byte, 1<<10)); err != nil {
			write()
			return
		}
	}
	write()
	Read(w, r)
}

// CloseAfter makes an answer of HTTP/1 the last one of its connection. An answer that is
// sent before the request's body was read has to be: net/http can take the rest of the
// body for the next request if reading it ended with an error.
func CloseAfter(h http.Header) { h.Set("Connection", "close") }

// isGRPC reports whether a request is one of gRPC over HTTP/2. Its answer may be a trailer
// alone, which is one only if the stream ends with it. Its clients know that an answer can
// come before the request has ended.
func isGRPC(r *http.Request) bool {
	return r.ProtoMajor == 2 && strings.HasPrefix(strings.ToLower(r.Header.Get("Content-Type")), "application/grpc")
}

// Read is Answer for an answer that has been written with full duplex and CloseAfter.
func Read(w http.ResponseWriter, r *http.Request) {
	if http.NewResponseController(w).Flush() != nil {
		return // there is nobody to answer
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
	Within(w, r, time.Now()) // or net/http would read on without a limit
}

// Within sets the deadline for reading the request's body. It does nothing where the
// server has a ReadTimeout, which is the operator's word on that, and where there is no
// connection, as in a test.
func Within(w http.ResponseWriter, r *http.Request, t time.Time) {
	if s, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok && s.ReadTimeout > 0 {
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(t)
}
