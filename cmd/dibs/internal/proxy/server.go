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
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/certificate"
	"github.com/dibs-go/dibs/cmd/dibs/internal/upstream"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/quantity"
	"github.com/dibs-go/dibs/internal/slow"
	"github.com/dibs-go/dibs/page"
)

// Server is a proxy. Make one with New.
type Server struct {
	client *dibs.Client
	log    *slog.Logger
	store  *outage.Log
	admin  *Admin                   // nil if off
	scopes []string                 // that were logged
	secure *certificate.Certificate // nil without TLS
	page   *page.Handler            // nil without admin

	storeTimeout time.Duration // that the client was made for

	stopping  atomic.Bool
	reloading sync.Mutex // held by reload

	mu      sync.RWMutex
	current *routing   // under mu: serves new requests
	retired []*routing // under mu: those before it that are still in use
}

// New returns a proxy that keeps its keys with the client. admin is nil without an admin
// listener. The error names the setting that is wrong.
func New(c *Config, client *dibs.Client, admin *Admin, log *slog.Logger) (*Server, error) {
	s := &Server{client: client, admin: admin, log: log, store: outage.New(log, "requests"), storeTimeout: c.StoreTimeout()}
	var err error
	if c.TLSCert != "" {
		if s.secure, err = certificate.New(c.TLSCert, c.TLSKey, s.log); err != nil {
			return nil, err
		}
	}
	if s.current, err = s.newRouting(c); err != nil {
		return nil, err
	}
	if admin != nil {
		s.page = page.New(admin.Store, &page.Options{StoreName: admin.StoreName, Namespace: &c.Namespace, Viewer: s.viewer, SignIn: s.signIn, Traffic: admin.Traffic, ShowBodies: c.AdminShowBodies, Logger: log})
	}
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
	o := p.middleware()
	if !p.Guard {
		return newReading(p, s.unguarded(f)), nil
	}
	o.Logger = slog.New(namingFlags{s.log.Handler()})
	o.Observe = s.observe
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

// headerLimit bounds how long a client may take to send a request's header.
const headerLimit = 30 * time.Second

// Serve serves on the listener until ctx is cancelled, and on the admin listener, unless nil,
// until it returns. Then it is not ready, and accepts requests for Config.DrainDelay longer. After
// that it accepts no new requests, and waits at most Config.Drain until the answers under way are
// sent and stored and the upgraded connections are closed. It returns nil then. With each signal
// from reload it reads the configuration again.
func (s *Server) Serve(ctx context.Context, l, admin net.Listener, reload <-chan os.Signal) error {
	server := &http.Server{
		Handler:                      http.HandlerFunc(s.serve),
		DisableGeneralOptionsHandler: true, // because the origin answers OPTIONS *
		ReadHeaderTimeout:            headerLimit,
		IdleTimeout:                  2 * time.Minute,
		ErrorLog:                     s.errorLog(),
		Protocols:                    new(http.Protocols),
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	failed := make(chan error, 2)
	go func() { failed <- s.accept(server, l, s.secure != nil) }()
	if admin != nil {
		a := &http.Server{Handler: s.adminHandler(), ReadHeaderTimeout: headerLimit, ErrorLog: s.errorLog()}
		secure := s.config().AdminTLS
		go func() { failed <- s.accept(a, admin, secure) }()
		defer a.Close()
	}
	ended, delayed := ctx.Done(), (<-chan time.Time)(nil)
	for {
		select {
		case err := <-failed:
			server.Close()
			return err
		case <-reload:
			_ = s.reload() // which logs its error
		case <-ended:
			s.stopping.Store(true)
			s.log.Info("the proxy drains: it ends when the requests under way are answered",
				"drain_delay", quantity.DurationText(s.config().DrainDelay), "drain", quantity.DurationText(s.config().Drain))
			ended, delayed = nil, time.After(s.config().DrainDelay)
		case <-delayed:
			s.drain(server)
			s.log.Info("the proxy has ended")
			return nil
		}
	}
}

// accept serves the connections of a listener, with TLS or without.
func (s *Server) accept(server *http.Server, l net.Listener, secure bool) error {
	if !secure {
		return server.Serve(l)
	}
	server.TLSConfig = s.secure.Config()
	return server.ServeTLS(l, "", "")
}

// drain waits for the requests under way and for upgraded connections, at most Config.Drain.
func (s *Server) drain(server *http.Server) {
	limit := s.config().Drain
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := server.Shutdown(ctx)
	for _, r := range s.inUse() {
		if err == nil { // otherwise new requests may come
			err = r.wait(ctx) // because Shutdown does not wait for upgraded connections
		}
	}
	if err != nil {
		s.log.Warn("requests were aborted, because they took longer than --drain", "drain", quantity.DurationText(limit), "error", err)
	}
	server.Close()
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
		s.log.Debug("a request begins", "request_id", x.id, "method", r.Method, "path", r.URL.EscapedPath())
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
