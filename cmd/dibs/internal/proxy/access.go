package proxy

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/dibs-go/dibs/idempotency"
)

// accessLog writes a line for each request, and one more for each guarded request. A line
// has no key, credential or answer. Of the target it has only the path, because queries
// carry secrets.
type accessLog struct{ log *slog.Logger }

func newAccessLog(w io.Writer) *accessLog {
	return &accessLog{slog.New(slog.NewTextHandler(w, nil))}
}

// observe logs the outcome of a guarded request.
func (l *accessLog) observe(ctx context.Context, e idempotency.Event) {
	if e.Outcome == idempotency.OutcomeUnguarded {
		return
	}
	attrs := make([]slog.Attr, 0, 9)
	attrs = append(attrs,
		slog.String("outcome", string(e.Outcome)),
		slog.String("key", e.Key()),
		slog.String("method", e.Method),
		slog.Int("status", e.Status),
	)
	if e.Attempt > 0 {
		attrs = append(attrs,
			slog.Int("attempt", e.Attempt), slog.Uint64("fence", e.Fence), slog.Bool("stored", e.Stored),
			slog.Duration("handler", e.Handler))
	}
	attrs = append(attrs, slog.Duration("store", e.Claiming+e.Settling))
	if e.Err != nil {
		attrs = append(attrs, slog.String("error", e.Err.Error()))
	}
	l.log.LogAttrs(ctx, slog.LevelInfo, "guarded", attrs...)
}

// begin returns the writer for the answer of a request. Its end writes the line.
func (l *accessLog) begin(w http.ResponseWriter, r *http.Request) *accessEntry {
	return &accessEntry{ResponseWriter: w, log: l.log, request: r, began: time.Now()}
}

// accessEntry counts the answer of a request.
type accessEntry struct {
	http.ResponseWriter
	log     *slog.Logger
	request *http.Request
	began   time.Time
	status  int
	bytes   int64
}

// WriteHeader records the final status.
func (e *accessEntry) WriteHeader(status int) {
	if e.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		e.status = status
	}
	e.ResponseWriter.WriteHeader(status)
}

// Write counts the bytes.
func (e *accessEntry) Write(p []byte) (int, error) {
	if e.status == 0 {
		e.status = http.StatusOK
	}
	n, err := e.ResponseWriter.Write(p)
	e.bytes += int64(n)
	return n, err
}

// Unwrap is for http.ResponseController.
func (e *accessEntry) Unwrap() http.ResponseWriter { return e.ResponseWriter }

// end writes the line.
func (e *accessEntry) end() {
	r := e.request
	e.log.LogAttrs(context.Background(), slog.LevelInfo, "request",
		slog.String("method", r.Method),
		slog.String("host", r.Host),
		slog.String("path", r.URL.EscapedPath()),
		slog.String("proto", r.Proto),
		slog.String("remote", r.RemoteAddr),
		slog.Int("status", e.status),
		slog.Int64("bytes", e.bytes),
		slog.Duration("took", time.Since(e.began)),
	)
}
