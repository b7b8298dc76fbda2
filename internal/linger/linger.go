// Package linger answers a request whose body has not been read, so that the answer
// arrives. A server that closes the connection while the client still sends makes the
// client's system drop the answer (RFC 9112, section 9.6).
package linger

import (
	"io"
	"net/http"
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
	if r.Body == nil || r.Body == http.NoBody {
		write()
		return
	}
	// Without it net/http reads a part of the body first. HTTP/2 knows no such thing.
	_ = http.NewResponseController(w).EnableFullDuplex()
	write()
	Read(w, r)
}

// Read is Answer for an answer that has been written with full duplex.
func Read(w http.ResponseWriter, r *http.Request) {
	if http.NewResponseController(w).Flush() != nil || len(r.Header["Expect"]) > 0 {
		return // there is nobody to answer, or the client waits before it sends a body
	}
	within := Deadlines(w, r)
	end := time.Now().Add(maxTime)
	buf := make([]byte, 32<<10)
	for left := maxBytes; left > 0 && time.Now().Before(end); {
		within(time.Now().Add(silence))
		n, err := r.Body.Read(buf)
		if left -= n; err == io.EOF {
			within(time.Time{}) // the next request has a time of its own
			return
		} else if err != nil {
			break
		}
	}
	within(time.Now()) // or net/http would read on without a limit
}

// Deadlines returns what sets the deadline for reading the request's body. It does nothing
// where the server has a ReadTimeout, which is the operator's word on that, and where
// there is no connection, as in a test.
func Deadlines(w http.ResponseWriter, r *http.Request) func(time.Time) {
	if s, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok && s.ReadTimeout > 0 {
		return func(time.Time) {}
	}
	c := http.NewResponseController(w)
	return func(t time.Time) { _ = c.SetReadDeadline(t) }
}
