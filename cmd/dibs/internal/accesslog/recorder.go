// Package accesslog notes what the log of requests says of each answer.
package accesslog

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"runtime/debug"
	"time"
)

// A Recorder is a ResponseWriter that notes the status and the length of the answer.
type Recorder struct {
	http.ResponseWriter
	// Status is the final status; 0 before it.
	Status int
	// Bytes is the length of the body so far.
	Bytes int64
}

// WriteHeader notes the status.
func (r *Recorder) WriteHeader(status int) {
	if r.Status == 0 && status >= 200 {
		r.Status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write counts the bytes.
func (r *Recorder) Write(p []byte) (int, error) {
	if r.Status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	n, err := r.ResponseWriter.Write(p)
	r.Bytes += int64(n)
	return n, err
}

// Hijack gives the connection to an upgrade.
func (r *Recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(r.ResponseWriter).Hijack()
	if err == nil {
		r.Status = http.StatusSwitchingProtocols
	}
	return c, rw, err
}

// Unwrap is for http.ResponseController.
func (r *Recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// Panicked returns what the log says of a handler that panicked with p: an error and the stack. It
// returns nil for http.ErrAbortHandler, which only ends the answer, and for no panic. Call it in the
// deferred function.
func Panicked(p any) (err error, stack []byte) {
	if p == nil || p == http.ErrAbortHandler {
		return nil, nil
	}
	return fmt.Errorf("a handler panicked: %v", p), debug.Stack()
}

// Milliseconds returns a duration in milliseconds, to the microsecond.
func Milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
