package serve

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"
)

// exchange is a call and its answer, for the access log. The line has no key and no token.
type exchange struct {
	http.ResponseWriter
	by     string // the name of the credential
	status int
	bytes  int64
}

type exchangeKey struct{}

// WriteHeader notes the status.
func (x *exchange) WriteHeader(status int) {
	if x.status == 0 && status >= 200 {
		x.status = status
	}
	x.ResponseWriter.WriteHeader(status)
}

// Write counts the bytes.
func (x *exchange) Write(p []byte) (int, error) {
	if x.status == 0 {
		x.WriteHeader(http.StatusOK)
	}
	n, err := x.ResponseWriter.Write(p)
	x.bytes += int64(n)
	return n, err
}

// Unwrap is for http.ResponseController.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// logged logs each call, with --access-log, and each panic.
func (s *Server) logged(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{ResponseWriter: w}
		began := time.Now()
		defer func() {
			p := recover()
			attrs := []slog.Attr{
				slog.String("request_id", rand.Text()), slog.String("method", r.Method), slog.String("path", r.URL.EscapedPath()),
				slog.String("remote", r.RemoteAddr), slog.String("credential", x.by), slog.Int("status", x.status),
				slog.Int64("bytes", x.bytes), slog.Float64("duration_ms", float64(time.Since(began).Microseconds())/1000),
			}
			switch {
			case p != nil && p != http.ErrAbortHandler:
				attrs = append(attrs, slog.String("error", fmt.Sprintf("a handler panicked: %v", p)), slog.String("stack", string(debug.Stack())))
				s.log.LogAttrs(context.Background(), slog.LevelError, "call", attrs...)
			case s.config.AccessLog:
				s.log.LogAttrs(context.Background(), slog.LevelInfo, "call", attrs...)
			}
			if p != nil {
				panic(http.ErrAbortHandler)
			}
		}()
		h.ServeHTTP(x, r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x)))
	})
}
