package proxy

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"time"

	"github.com/dibs-go/dibs/cmd/dibs/internal/accesslog"
	"github.com/dibs-go/dibs/idempotency"
)

// exchange is a request and its answer. Its end writes one line to the log. The line has the
// digest of the key, and no credential or body. Of the target it has only the path, because queries carry secrets.
type exchange struct {
	accesslog.Recorder
	request *http.Request
	id      string // for the log and the origin
	began   time.Time
	event   idempotency.Event // has no outcome before it is known
	problem string            // the name of the problem document that the proxy itself sent
	failure error             // why the origin gave no answer, or a part of it
}

// exchangeKey is the key of the context's value that is the exchange.
type exchangeKey struct{}

// exchangeOf returns the exchange of a request's context.
func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// newExchange begins an exchange. The context of r carries it.
func newExchange(w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{Recorder: accesslog.Recorder{ResponseWriter: w}, request: r, began: time.Now(), id: requestID(r)}
	// Not a copy of r, because net/http adds an unannounced trailer to r itself.
	*r = *r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
	return x
}

// requestIDHeader is the field with a request's ID.
const requestIDHeader = "X-Request-Id"

// maxID is the longest ID of a client that is used, in bytes.
const maxID = 128

// requestID returns the request's ID: the X-Request-Id of the client or of a gateway, if it is one
// line of visible ASCII of at most maxID bytes, or a new one.
func requestID(r *http.Request) string {
	if ids := r.Header[requestIDHeader]; len(ids) == 1 && len(ids[0]) <= maxID && visible(ids[0]) {
		return ids[0]
	}
	return rand.Text()
}

// writeProblem answers with a problem of the proxy itself.
func (p *Policy) writeProblem(w http.ResponseWriter, r *http.Request, problem idempotency.Problem) {
	exchangeOf(r.Context()).problem = problem.Name
	problemWriters[p.Errors](w, r, problem)
}

// end writes the line, if all is true or the level is above info. Defer it: it recovers from a
// panic, and aborts the answer.
func (x *exchange) end(log *slog.Logger, all bool) {
	p := recover()
	level, err := slog.LevelInfo, x.event.Err
	panicked, stack := accesslog.Panicked(p)
	switch {
	case panicked != nil:
		level, err = slog.LevelError, panicked
	case x.failure != nil:
		level, err = slog.LevelWarn, x.failure
	case x.event.Start.IsZero() && noFile(err):
		level = slog.LevelError
	}
	if all || level > slog.LevelInfo {
		log.LogAttrs(context.Background(), level, "request", x.attrs(err, stack)...)
	}
	if p != nil {
		panic(http.ErrAbortHandler)
	}
}

// noFile reports whether a request's body could not be kept in a temporary file.
func noFile(err error) bool {
	_, is := errors.AsType[*fs.PathError](err)
	return is
}

// attrs returns the fields of the line. docs/operate.md lists them.
func (x *exchange) attrs(err error, stack []byte) []slog.Attr {
	r, e := x.request, &x.event
	attrs := make([]slog.Attr, 0, 19)
	attrs = append(attrs,
		slog.String("request_id", x.id),
		slog.String("method", r.Method),
		slog.String("host", r.Host),
		slog.String("path", r.URL.EscapedPath()),
		slog.String("proto", r.Proto),
		slog.String("remote", r.RemoteAddr),
		slog.Int("status", x.Status),
		slog.Int64("bytes", x.Bytes),
		slog.Float64("duration_ms", accesslog.Milliseconds(time.Since(x.began))),
		slog.String("outcome", string(e.Kind)),
	)
	if problem := cmp.Or(e.Problem, x.problem); problem != "" {
		attrs = append(attrs, slog.String("problem", problem))
	}
	if e.Key() != "" {
		attrs = append(attrs, slog.Any("key", e.StoreKey()), slog.Float64("store_ms", accesslog.Milliseconds(e.Claiming+e.Settling)))
	}
	if e.Attempt > 0 {
		attrs = append(attrs,
			slog.Int("attempt", e.Attempt), slog.Uint64("fence", e.Fence), slog.Bool("stored", e.Stored),
			slog.Float64("handler_ms", accesslog.Milliseconds(e.Handler)))
	}
	if err != nil {
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	if stack != nil {
		attrs = append(attrs, slog.String("stack", string(stack)))
	}
	return attrs
}
