// Package proxy is dibs proxy: a reverse proxy that makes the HTTP service behind it (the
// origin) idempotent.
package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/upstream"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/linger"
)

// Server is a proxy. Make one with New.
type Server struct {
	config *Config
	client *dibs.Client
	log    *slog.Logger
	store  outage
	admin  *Admin // nil if off
	routes []route
	guards []*idempotency.Middleware
	scopes []string // that were logged
	origin []*upstream.Transport
	secure *certificate // nil without TLS

	stopping atomic.Bool
}

// route is a Route with its handler.
type route struct {
	Route
	handler http.Handler
}

// New returns a proxy that keeps its keys with the client. admin is nil without an admin
// listener. The error names the setting that is wrong.
func New(c *Config, client *dibs.Client, admin *Admin, log *slog.Logger) (*Server, error) {
	s := &Server{config: c, client: client, admin: admin, log: log, store: outage{log: log}}
	if c.TLSCert != "" {
		var err error
		if s.secure, err = newCertificate(c.TLSCert, c.TLSKey, s.log); err != nil {
			return nil, err
		}
	}
	all := c.Routes
	if c.Upstream != "" {
		all = append(slices.Clip(all), Route{Policy: c.Policy})
	}
	for _, r := range all {
		h, err := s.handler(&r.Policy)
		if err != nil {
			return nil, err
		}
		if len(r.CORS) > 0 {
			h = newCORS(r.CORS, h)
		}
		if r.Path.text == "" && r.Host == "" {
			// For the policy at the top, methods says what is guarded, and not what is
			// served.
			r.Options.Methods = nil
		}
		s.routes = append(s.routes, route{Route: r, handler: h})
	}
	return s, nil
}

// handler returns the handler for a policy.
func (s *Server) handler(p *Policy) (http.Handler, error) {
	t, err := upstream.New(p.Upstream, &upstream.Options{ConnectTimeout: p.ConnectTimeout})
	if err != nil {
		return nil, fmt.Errorf("upstream: %w", err)
	}
	s.origin = append(s.origin, t)
	f := newForwarder(p, t, s.errorLog())
	o := p.middleware()
	if !p.Guard {
		return s.unguarded(f), nil
	}
	o.Logger = s.log
	o.Observe = s.observe
	m, err := idempotency.New(s.client, o)
	if err != nil {
		return nil, err
	}
	s.logScope(o.Scope)
	s.guards = append(s.guards, m)
	return m.Wrap(f), nil
}

// observe notes the outcome of a request.
func (s *Server) observe(ctx context.Context, e idempotency.Event) {
	exchangeOf(ctx).event = e
	s.store.observe(e)
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
	if text := strings.Join(names, ","); !slices.Contains(s.scopes, text) {
		s.scopes = append(s.scopes, text)
		s.log.Info("requests without these credentials share keys", "scope", text)
	}
}

// headerLimit bounds how long a client may take to send a request's header.
const headerLimit = 30 * time.Second

// Serve serves on the listener until ctx is cancelled, and on the admin listener, unless nil,
// until it returns. Then it accepts no new requests, and waits at most Config.Drain until
// the answers under way are sent and stored. It returns nil after that.
func (s *Server) Serve(ctx context.Context, l, admin net.Listener) error {
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
		go func() { failed <- s.accept(a, admin, s.config.AdminTLS) }()
		defer a.Close()
	}
	select {
	case err := <-failed:
		server.Close()
		return err
	case <-ctx.Done():
	}
	s.drain(server)
	return nil
}

// accept serves the connections of a listener, with TLS or without.
func (s *Server) accept(server *http.Server, l net.Listener, secure bool) error {
	if !secure {
		return server.Serve(l)
	}
	server.TLSConfig = s.secure.config()
	return server.ServeTLS(l, "", "")
}

// drain waits for the requests under way, at most Config.Drain.
func (s *Server) drain(server *http.Server) {
	s.stopping.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), s.config.Drain)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		s.log.Warn("requests were aborted, because they took longer than --drain", "drain", spanText(s.config.Drain), "error", err)
	}
	server.Close()
	for _, m := range s.guards {
		if err := m.Drain(ctx); err != nil {
			s.log.Warn("answers were not stored; their retries run again", "error", err)
		}
	}
	for _, t := range s.origin {
		t.CloseIdleConnections()
	}
}

// serve is the handler of all requests.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	x := newExchange(w, r)
	defer x.end(s.log, s.config.AccessLog)
	w = x
	s.log.Debug("a request begins", "request_id", x.id, "method", r.Method, "path", r.URL.EscapedPath())
	if lastOfConnection(r) {
		linger.CloseAfter(w.Header())
	}
	if r.Method == "PRI" {
		w.Header().Set("Connection", "close")
		s.refuse(w, r, badMethod)
		return
	}
	if r.Method == http.MethodConnect {
		s.refuse(w, r, noConnect)
		return
	}
	for i := range s.routes {
		if s.routes[i].matches(r) {
			s.routes[i].handler.ServeHTTP(w, r)
			return
		}
	}
	s.refuse(w, r, noRoute)
}

// unguarded observes the requests of a handler without a middleware.
func (s *Server) unguarded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		defer func() {
			s.observe(r.Context(), idempotency.Event{Outcome: idempotency.OutcomeUnguarded, Method: r.Method, Handler: time.Since(began)})
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
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, p idempotency.Problem) {
	s.observe(r.Context(), idempotency.Event{Outcome: idempotency.OutcomeInvalid, Method: r.Method, Status: p.Status})
	linger.Answer(w, r, func() { idempotency.WriteProblem(w, r, s.config.Options.DocsURL, p) })
}

// matches reports whether the route is for the request.
func (r *route) matches(req *http.Request) bool {
	if r.Host != "" && !strings.EqualFold(r.Host, req.Host) && !strings.EqualFold(r.Host, hostname(req.Host)) {
		return false
	}
	if len(r.Options.Methods) > 0 && !slices.Contains(r.Options.Methods, req.Method) {
		return false
	}
	return r.Path.match(req.URL.Path)
}

// hostname returns a host without its port.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return host
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
