package server

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"
)

// Exchange is a request and its answer, for the access log.
type Exchange struct {
	Recorder
	Request *http.Request
	ID      string // for the log; "" stands for RequestID
	Began   time.Time
}

// NewExchange begins an exchange.
func NewExchange(w http.ResponseWriter, r *http.Request) Exchange {
	return Exchange{Recorder: Recorder{ResponseWriter: w}, Request: r, Began: time.Now()}
}

// RequestIDHeader is the field with a request's ID.
const RequestIDHeader = "X-Request-Id"

// maxID is the longest ID of a client that is used, in bytes.
const maxID = 128

// RequestID returns the request's ID: the X-Request-Id of the client or of a gateway, if it is one
// line of visible ASCII of at most maxID bytes, or a new one.
func RequestID(r *http.Request) string {
	if ids := r.Header[RequestIDHeader]; len(ids) == 1 && len(ids[0]) <= maxID && IsVisible(ids[0]) {
		return ids[0]
	}
	return rand.Text()
}

// IsVisible reports whether s is visible ASCII.
func IsVisible(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c > '~' })
}

// Log writes the line of the exchange, with what the program adds, and why it failed; nil if it did not.
// The line has no credential, no body and no query, because queries carry secrets.
func (x *Exchange) Log(log *slog.Logger, level slog.Level, err error, stack []byte, more ...slog.Attr) {
	attrs := make([]slog.Attr, 0, 11+len(more))
	attrs = append(attrs,
		slog.String("request_id", cmp.Or(x.ID, RequestID(x.Request))),
		slog.String("method", x.Request.Method),
		slog.String("host", x.Request.Host),
		slog.String("path", x.Request.URL.EscapedPath()),
		slog.String("proto", x.Request.Proto),
		slog.String("remote", x.Request.RemoteAddr),
		slog.Int("status", x.Status),
		slog.Int64("bytes", x.Bytes),
		slog.Float64("duration_ms", Milliseconds(time.Since(x.Began))),
	)
	attrs = append(attrs, more...)
	if err != nil {
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	if stack != nil {
		attrs = append(attrs, slog.String("stack", string(stack)))
	}
	log.LogAttrs(context.Background(), level, "request", attrs...)
}

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
