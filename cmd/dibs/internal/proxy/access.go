package proxy

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/dibs-go/dibs/idempotency"
)

// accessLog writes a line for each request, and one more for each that was
// guarded. Lines name no key, credential or answer, and of the target only the
// path, because queries carry secrets. They are written in bundles, a moment
// late: a system call for each would cost more than forwarding.
type accessLog struct {
	log *slog.Logger
	out *bundle
}

func newAccessLog(w io.Writer) *accessLog {
	out := newBundle(w)
	return &accessLog{log: slog.New(slog.NewTextHandler(out, nil)), out: out}
}

// close writes what is left.
func (l *accessLog) close() {
	if l != nil {
		l.out.close()
	}
}

// observe logs what became of a guarded request.
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

// begin starts the entry of a request; the entry is the writer to answer to.
func (l *accessLog) begin(w http.ResponseWriter, r *http.Request) *entry {
	return &entry{ResponseWriter: w, log: l, request: r, began: time.Now()}
}

// entry counts what is answered.
type entry struct {
	http.ResponseWriter
	log     *accessLog
	request *http.Request
	began   time.Time
	status  int
	bytes   int64
}

// WriteHeader notes the final status.
func (e *entry) WriteHeader(status int) {
	if e.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		e.status = status
	}
	e.ResponseWriter.WriteHeader(status)
}

// Write counts the bytes.
func (e *entry) Write(p []byte) (int, error) {
	if e.status == 0 {
		e.status = http.StatusOK
	}
	n, err := e.ResponseWriter.Write(p)
	e.bytes += int64(n)
	return n, err
}

// Unwrap is for http.ResponseController.
func (e *entry) Unwrap() http.ResponseWriter { return e.ResponseWriter }

// end writes the entry.
func (e *entry) end() {
	r := e.request
	e.log.log.LogAttrs(context.Background(), slog.LevelInfo, "request",
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

// bundle collects lines and writes them when there are many, or a moment later.
type bundle struct {
	mu    sync.Mutex
	w     *bufio.Writer
	timer *time.Timer
	due   bool
}

// bundleDelay is how late a line may be.
const bundleDelay = 100 * time.Millisecond

func newBundle(w io.Writer) *bundle {
	b := &bundle{w: bufio.NewWriterSize(w, 64<<10)}
	b.timer = time.AfterFunc(bundleDelay, b.flush)
	b.timer.Stop()
	return b
}

// Write takes a line. What cannot be logged does not fail a request.
func (b *bundle) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.w.Available() < len(p) {
		_ = b.w.Flush() // so that bundles end at the end of a line
	}
	if !b.due {
		b.due = true
		b.timer.Reset(bundleDelay)
	}
	return b.w.Write(p)
}

func (b *bundle) flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.due = false
	_ = b.w.Flush() // there is nobody to tell
}

func (b *bundle) close() {
	b.timer.Stop()
	b.flush()
}
