// Package proxy is dibs proxy: an HTTP proxy that makes the origin behind it
// idempotent.
package proxy

import (
	"context"
	"fmt"
	"io"
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
	access *accessLog // nil: off
	admin  *Admin     // nil: off
	routes []route
	guards []*idempotency.Middleware
	scopes []string // that the log has told of
	origin []*upstream.Transport

	stopping atomic.Bool
}

// route is a Route that is ready.
type route struct {
	Route
	handler http.Handler
}

// New returns a proxy over the client. admin is what an admin listener serves, nil if
// there is none; logs gets what operators want to know. The error names the field of the
// configuration that is wrong.
func New(c *Config, client *dibs.Client, admin *Admin, logs io.Writer) (*Server, error) {
	s := &Server{
		config: c,
		client: client,
		admin:  admin,
		log:    slog.New(slog.NewTextHandler(logs, nil)),
	}
	if c.AccessLog {
		s.access = newAccessLog(logs)
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
		if r.Path == nil && r.Host == "" {
			// What falls through to the top is treated by its methods, not
			// turned away.
			r.Options.Methods = nil
		}
		s.routes = append(s.routes, route{Route: r, handler: h})
	}
	return s, nil
}

// handler returns what serves the requests of a policy.
func (s *Server) handler(p *Policy) (http.Handler, error) {
	t, err := upstream.New(p.Upstream, &upstream.Options{ConnectTimeout: p.ConnectTimeout})
	if err != nil {
		return nil, fmt.Errorf("upstream: %w", err)
	}
	s.origin = append(s.origin, t)
	f := newForwarder(p, t, slog.NewLogLogger(s.log.Handler(), slog.LevelWarn))
	o := p.middleware()
	if !p.Guard {
		return s.unguarded(f), nil
	}
	o.Logger = s.log
	o.Observe = s.observer()
	m, err := idempotency.New(s.client, o)
	if err != nil {
		return nil, err
	}
	s.tell(o.Scope)
	s.guards = append(s.guards, m)
	return m.Wrap(f), nil
}

// observer tells the access log and the metrics of a request, as far as they are on.
func (s *Server) observer() func(context.Context, idempotency.Event) {
	switch {
	case s.admin == nil && s.access == nil:
		return nil
	case s.admin == nil:
		return s.access.observe
	case s.access == nil:
		return s.admin.Observe
	}
	return func(ctx context.Context, e idempotency.Event) {
		s.access.observe(ctx, e)
		s.admin.Observe(ctx, e)
	}
}

// tell logs a scope that it has not logged yet.
func (s *Server) tell(parts []idempotency.ScopePart) {
	names := make([]string, len(parts))
	for i, part := range parts {
		names[i] = part.String()
	}
	if text := strings.Join(names, ","); !slices.Contains(s.scopes, text) {
		s.scopes = append(s.scopes, text)
		s.log.Info("requests without these credentials share keys", "scope", text)
	}
}

// headerLimit is how long a client may take for a request's header.
const headerLimit = 30 * time.Second

// Serve serves on the listener until ctx ends, and on the admin listener, if
// there is one, until it returns. Then it takes no new requests, waits for the
// answers that are under way to be sent and stored, for Config.Drain at most,
// and returns nil.
func (s *Server) Serve(ctx context.Context, l, admin net.Listener) error {
	server := &http.Server{
		Handler:                      http.HandlerFunc(s.serve),
		DisableGeneralOptionsHandler: true, // OPTIONS * is the origin's to answer
		ReadHeaderTimeout:            headerLimit,
		IdleTimeout:                  2 * time.Minute,
		ErrorLog:                     slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		Protocols:                    new(http.Protocols),
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	failed := make(chan error, 2)
	go func() { failed <- server.Serve(l) }()
	if admin != nil {
		a := &http.Server{Handler: s.adminHandler(), ReadHeaderTimeout: headerLimit}
		go func() { failed <- a.Serve(admin) }()
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

// drain lets the requests that are under way finish, for Config.Drain at most.
func (s *Server) drain(server *http.Server) {
	s.stopping.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), s.config.Drain)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		s.log.Warn("requests were cut off: they took longer than --drain", "drain", s.config.Drain, "error", err)
	}
	server.Close()
	for _, m := range s.guards {
		if err := m.Drain(ctx); err != nil {
			s.log.Warn("answers are not stored yet; their retries run again", "error", err)
		}
	}
	for _, t := range s.origin {
		t.CloseIdleConnections()
	}
}

// serve is the handler of all requests.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if lastOfConnection(r) {
		linger.CloseAfter(w.Header())
	}
	if r.Method == "PRI" {
		w.Header().Set("Connection", "close")
		s.refuse(w, r, badMethod)
		return
	}
	if s.access != nil {
		entry := s.access.begin(w, r)
		defer entry.end()
		w = entry
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

// unguarded tells of the requests of a handler that no middleware is before.
func (s *Server) unguarded(h http.Handler) http.Handler {
	if s.admin == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		defer func() {
			s.admin.Observe(r.Context(), idempotency.Event{Outcome: idempotency.OutcomeUnguarded, Method: r.Method, Handler: time.Since(began)})
		}()
		h.ServeHTTP(w, r)
	})
}

// lastOfConnection reports whether nothing that follows the request on its connection is
// served. A request that had a Content-Length beside its Transfer-Encoding, which net/http
// does not tell, is read in another way by other servers: what follows it may be a request
// that was smuggled past one of them (RFC 9112, section 6.1).
func lastOfConnection(r *http.Request) bool {
	return len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1)
}

// refuse answers a request that goes nowhere.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, p idempotency.Problem) {
	if s.admin != nil {
		s.admin.Observe(r.Context(), idempotency.Event{Outcome: idempotency.OutcomeInvalid, Method: r.Method, Status: p.Status})
	}
	linger.Answer(w, r, func() { idempotency.WriteProblem(w, r, s.config.Options.DocsURL, p) })
}

// matches reports whether the request is one of the route's.
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

// What the proxy itself refuses, guarded or not: it could not be passed on in
// one meaning.
var (
	badMethod = idempotency.Problem{
		Name: "method-refused", Status: http.StatusBadRequest, Title: "PRI is a part of HTTP/2 and not a method",
	}
	badTarget = idempotency.Problem{
		Name: "target-refused", Status: http.StatusBadRequest, Title: "The request target is not a valid URI",
		Detail: "It begins with two slashes and has characters that have to be percent-encoded.",
	}
	noConnect = idempotency.Problem{
		Name: "method-refused", Status: http.StatusMethodNotAllowed, Title: "CONNECT is not served here",
	}
	noRoute = idempotency.Problem{
		Name: "no-route", Status: http.StatusMisdirectedRequest, Title: "No route of the proxy is for this request",
		Detail: "Its configuration has neither a route that matches nor an upstream at the top.",
	}
)
