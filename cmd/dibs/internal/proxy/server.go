// Package proxy is dibs proxy: a reverse proxy that makes the HTTP service behind it (the
// origin) idempotent.
package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/server"
	"github.com/dibs-go/dibs/cmd/dibs/internal/upstream"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/slow"
)

// Server is a proxy. Make one with New.
type Server struct {
	client *dibs.Client
	log    *slog.Logger
	store  *outage.Log
	admin  *Admin   // nil if off
	scopes []string // that were logged
	shell  *server.Server

	storeTimeout time.Duration // that the client was made for

	reloading sync.Mutex // held by reload

	mu      sync.RWMutex
	current *routing   // under mu: serves new requests
	retired []*routing // under mu: those before it that are still in use
}

// New returns a proxy that keeps its keys with the client. admin is nil without an admin
// listener. The error names the setting that is wrong.
func New(c *Config, client *dibs.Client, admin *Admin, log *slog.Logger) (*Server, error) {
	s := &Server{client: client, admin: admin, log: log, store: outage.New(log, "requests"), storeTimeout: c.MaxStoreTimeout()}
	var err error
	if s.shell, err = server.New(s.shellOptions(c)); err != nil {
		return nil, err
	}
	r, err := s.newRouting(c)
	if err != nil {
		return nil, err
	}
	s.use(r)
	return s, nil
}

// handler returns the handler for a policy of a routing.
func (s *Server) handler(r *routing, p *Policy) (http.Handler, error) {
	t, err := upstream.New(p.Upstream, &upstream.Options{ConnectTimeout: p.ConnectTimeout})
	if err != nil {
		return nil, fmt.Errorf("upstream: %w", err)
	}
	r.origins = append(r.origins, t)
	f := newForwarder(p, t)
	o := p.options()
	if !p.Guard {
		return newReading(p, s.unguarded(f)), nil
	}
	o.Logger = slog.New(namingFlags{s.log.Handler()})
	o.Observe = s.observe
	o.MaxBodyMemory = 0 // that of the process; see shareMemory
	m, err := idempotency.New(s.client, o)
	if err != nil {
		return nil, err
	}
	s.logScope(o.Scope)
	r.guards = append(r.guards, m)
	return newReading(p, m.Wrap(f)), nil
}

// observe notes the outcome of a request.
func (s *Server) observe(ctx context.Context, e idempotency.Event) {
	exchangeOf(ctx).event = e
	noteStore(s.store, e)
	if s.admin != nil {
		s.admin.Observe(ctx, e)
	}
}

// logScope logs each scope once.
func (s *Server) logScope(parts []idempotency.ScopePart) {
	names := make([]string, len(parts))
	for i, part := range parts {
		names[i] = part.String()
	}
	text := strings.Join(names, ",")
	if slices.Contains(s.scopes, text) {
		return
	}
	s.scopes = append(s.scopes, text)
	message := "requests without these credentials share keys"
	if text == idempotency.ScopeNone.String() {
		message = "all clients share keys"
	}
	s.log.Info(message, "scope", text)
}

// Serve serves on the listener until ctx is cancelled, and on the admin listener, unless nil,
// until it returns. Then it is not ready, and accepts requests for Config.DrainDelay longer. After
// that it accepts no new requests, and waits at most Config.Drain until the answers under way are
// sent and stored and the upgraded connections are closed. It returns nil then. With each signal
// from reload it reads the configuration again.
func (s *Server) Serve(ctx context.Context, l, admin net.Listener, reload <-chan os.Signal) error {
	doors := []server.Door{{
		Server: &http.Server{
			Handler:                      http.HandlerFunc(s.serve),
			DisableGeneralOptionsHandler: true, // because the origin answers OPTIONS *
			MaxHeaderBytes:               http.DefaultMaxHeaderBytes,
		},
		Listeners: []net.Listener{l},
	}}
	if admin != nil {
		doors = append(doors, server.Door{Server: &http.Server{Handler: s.adminHandler()}, Listeners: []net.Listener{admin}, Plain: !s.config().AdminTLS, Lasts: true})
	}
	return s.shell.Serve(ctx, server.Life{
		Reload: func() { _ = s.reload() }, // which logs its error
		Times:  func() (delay, drain time.Duration) { return s.config().DrainDelay, s.config().Drain },
		Wait:   s.wait,
		Ended:  s.finish,
	}, reload, doors...)
}

// wait waits for upgraded connections, because http.Server does not.
func (s *Server) wait(ctx context.Context) error {
	for _, r := range s.inUse() {
		if err := r.wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// finish waits until the answers are stored.
func (s *Server) finish(ctx context.Context) {
	for _, r := range s.inUse() {
		for _, err := range r.drain(ctx) {
			s.log.Warn("answers were not stored; their retries run again", "error", err)
		}
		r.closeIdle()
	}
}

// serve is the handler of all requests.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	routing := s.enter()
	defer routing.requests.Done()
	x := newExchange(w, r)
	defer x.end(s.log, routing.config.AccessLog)
	w = x
	if s.log.Enabled(r.Context(), slog.LevelDebug) {
		s.log.Debug("a request begins", "request_id", x.ID, "method", r.Method, "path", r.URL.EscapedPath())
	}
	if lastOfConnection(r) {
		slow.CloseAfter(w.Header())
	}
	if r.Method == "PRI" {
		w.Header().Set("Connection", "close")
		s.refuse(w, r, routing, badMethod)
		return
	}
	if r.Method == http.MethodConnect {
		s.refuse(w, r, routing, noConnect)
		return
	}
	if h := routing.handlerOf(r); h != nil {
		h.ServeHTTP(w, r)
		return
	}
	s.refuse(w, r, routing, noRoute)
}

// unguarded observes the requests of a handler without a middleware.
func (s *Server) unguarded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		defer func() {
			s.observe(r.Context(), idempotency.Event{
				Kind: idempotency.EventUnguarded, Problem: exchangeOf(r.Context()).problem, Method: r.Method, Handler: time.Since(began),
			})
		}()
		h.ServeHTTP(w, r)
	})
}

// lastOfConnection reports whether the connection is closed after the answer. A request with
// a Transfer-Encoding may also have had a Content-Length, which net/http does not say. Other
// servers read such a request in another way, so the bytes after it may be a smuggled
// request (RFC 9112, section 6.1).
func lastOfConnection(r *http.Request) bool {
	return len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1)
}

// refuse answers a request that the origin does not get.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, by *routing, p idempotency.Problem) {
	s.observe(r.Context(), idempotency.Event{Kind: idempotency.EventInvalid, Method: r.Method, Status: p.Status, Problem: p.Name})
	slow.Answer(w, r, func() { by.config.writeProblem(w, r, p) })
}

// The problems of requests that the proxy refuses, guarded or not.
var (
	badMethod = idempotency.Problem{
		Name: "method-refused", Status: http.StatusBadRequest, Title: "PRI is a part of HTTP/2 and not a method",
	}
	badTarget = idempotency.Problem{
		Name: "target-refused", Status: http.StatusBadRequest, Title: "The request target is not a valid URI",
		Detail: "It begins with two slashes and has characters that must be percent-encoded.",
	}
	noConnect = idempotency.Problem{
		Name: "method-refused", Status: http.StatusMethodNotAllowed, Title: "CONNECT is not served here",
	}
	noRoute = idempotency.Problem{
		Name: "no-route", Status: http.StatusMisdirectedRequest, Title: "No route of the proxy is for this request",
		Detail: "Its configuration has neither a route that matches nor an upstream at the top.",
	}
)
