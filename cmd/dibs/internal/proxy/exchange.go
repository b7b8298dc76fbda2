package proxy

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"

	"github.com/dibs-go/dibs/cmd/dibs/internal/server"
	"github.com/dibs-go/dibs/idempotency"
)

// exchange is a request and its answer. Its end writes one line to the log. The line has the
// digest of the key, and no credential or body. Of the target it has only the path, because queries carry secrets.
type exchange struct {
	server.Exchange
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
	x := &exchange{Exchange: server.NewExchange(w, r)}
	x.ID = server.RequestID(r) // which the origin gets
	// Not a copy of r, because net/http adds an unannounced trailer to r itself.
	*r = *r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
	return x
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
	panicked, stack := server.Panicked(p)
	switch {
	case panicked != nil:
		level, err = slog.LevelError, panicked
	case x.failure != nil:
		level, err = slog.LevelWarn, x.failure
	case x.event.Start.IsZero() && noFile(err):
		level = slog.LevelError
	}
	if all || level > slog.LevelInfo {
		x.Log(log, level, err, stack, x.attrs()...)
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

// attrs returns the proxy's own fields of the line. docs/operate/incidents.md lists all.
func (x *exchange) attrs() []slog.Attr {
	e := &x.event
	attrs := append(make([]slog.Attr, 0, 8), slog.String("outcome", string(e.Kind)))
	if problem := cmp.Or(e.Problem, x.problem); problem != "" {
		attrs = append(attrs, slog.String("problem", problem))
	}
	if e.Key() != "" {
		attrs = append(attrs, slog.Any("key", e.StoreKey()), slog.Float64("store_ms", server.Milliseconds(e.Claiming+e.Settling)))
	}
	if e.Attempt > 0 {
		attrs = append(attrs,
			slog.Int("attempt", e.Attempt), slog.Uint64("fence", e.Fence), slog.Bool("stored", e.Stored),
			slog.Float64("handler_ms", server.Milliseconds(e.Handler)))
	}
	return attrs
}
