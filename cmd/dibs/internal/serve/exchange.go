package serve

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/dibs-go/dibs/cmd/dibs/internal/server"
	"github.com/dibs-go/dibs/internal/memory"
)

// Call is one call that is over, for metrics.
type Call struct {
	Method, Route string // the route is "" for a path that there is not
	Status        int    // 0 if the client went away
	// Problem is the type of the problem, "canceled" if the client went away, "aborted" if the answer
	// broke off, or "" for an answer.
	Problem string
	Took    time.Duration
	Waited  bool   // it was a long poll
	Verb    string // claim, renew, settle, or ""
	// Outcomes counts the elements of an answer by state, or by the type of their error; renewals
	// and settlements that were done are "done".
	Outcomes map[string]int
}

// exchange is a call and its answer, for the access log and for metrics. The line has no key and
// no token.
type exchange struct {
	server.Exchange
	ctx     context.Context
	conn    net.Conn       // nil if it is not known
	timeout time.Duration  // how long the client listens; 0: no limit
	gone    bool           // the client had gone away before it was answered
	by      string         // the name of the credential
	memory  memory.Account // of the body and the elements, until the call is over
	records memory.Account
	waits   bool // for memory; see Server.take
	call    Call
}

// WriteHeader notes whether the client is still there. When it has its answer it may go away at
// any time, even before the handler ends.
func (x *exchange) WriteHeader(status int) {
	x.gone = x.gone || x.Status == 0 && x.ctx.Err() != nil
	x.Recorder.WriteHeader(status)
}

func (x *exchange) Write(p []byte) (int, error) {
	if x.Status == 0 {
		x.WriteHeader(http.StatusOK)
	}
	return x.Recorder.Write(p)
}

type exchangeKey struct{}

// exchangeOf returns the exchange of a request, or a new one. It is not inlined, because the new one
// would take room in the frames of calls that wait.
//
//go:noinline
func exchangeOf(ctx context.Context) *exchange {
	if x, ok := ctx.Value(exchangeKey{}).(*exchange); ok {
		return x
	}
	return new(exchange)
}

// logged logs each call, with --access-log, and each panic.
func (s *Server) logged(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{Exchange: server.NewExchange(w, r), ctx: r.Context()}
		x.conn, _ = r.Context().Value(connectionKey{}).(net.Conn)
		r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
		defer func() {
			p := recover()
			took := time.Since(x.Began)
			x.memory.Close()
			x.records.Close()
			if p != nil {
				x.call.Problem = "aborted"
			}
			s.report(x, r, took)
			if err, stack := server.Panicked(p); err != nil || s.config.AccessLog {
				level := slog.LevelInfo
				if err != nil {
					level = slog.LevelError
				}
				x.Log(s.log, level, err, stack, slog.String("credential", x.by))
			}
			if p != nil {
				panic(http.ErrAbortHandler)
			}
		}()
		h.ServeHTTP(x, r)
	})
}

// report tells the program of a call. r is what the mux has served.
func (s *Server) report(x *exchange, r *http.Request, took time.Duration) {
	if s.hooks.Call == nil {
		return
	}
	c := x.call
	c.Method, c.Status, c.Took = r.Method, x.Status, took
	if _, c.Route, _ = strings.Cut(r.Pattern, " "); c.Route == "" && r.Pattern != "/" {
		c.Route = r.Pattern // of a path with another method
	}
	if x.gone || x.Status == 0 && r.Context().Err() != nil {
		c.Status, c.Problem = 0, "canceled"
	}
	s.hooks.Call(c)
}
