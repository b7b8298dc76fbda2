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
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/upstream"
	"github.com/dibs-go/dibs/idempotency"
)

// Server is a proxy. Make one with New.
type Server struct {
	config *Config
	client *dibs.Client
	log    *slog.Logger
	access *accessLog // nil: off
	routes []route
	life   *life
	guards []*idempotency.Middleware
	scopes []string // that the log has told of
	origin []*upstream.Transport
}

// route is a Route that is ready.
type route struct {
	Route
	handler http.Handler
}

// New returns a proxy over the client. logs gets what operators want to know.
// The error names the field of the configuration that is wrong.
func New(c *Config, client *dibs.Client, logs io.Writer) (*Server, error) {
	s := &Server{
		config: c,
		client: client,
		log:    slog.New(slog.NewTextHandler(logs, nil)),
		life:   newLife(),
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
		if r.Path == "" && r.Host == "" {
			// What falls through to the top is treated by its methods, not
			// turned away.
			r.Methods = nil
		}
		s.routes = append(s.routes, route{Route: r, handler: h})
	}
	return s, nil
}

// handler returns what serves the requests of a policy.
func (s *Server) handler(p *Policy) (http.Handler, error) {
	t, err := upstream.New(p.Upstream, &upstream.Options{ConnectTimeout: time.Duration(p.ConnectTimeout)})
	if err != nil {
		return nil, fmt.Errorf("upstream: %w", err)
	}
	s.origin = append(s.origin, t)
	f := newForwarder(p, t, slog.NewLogLogger(s.log.Handler(), slog.LevelWarn))
	o, err := p.options()
	if err != nil {
		return nil, err
	}
	if !p.Guard {
		return f, nil
	}
	o.Logger = s.log
	if s.access != nil {
		o.Observer = s.access.observe
	}
	m, err := idempotency.New(s.client, o)
	if err != nil {
		return nil, err
	}
	s.tell(o.Scope)
	s.guards = append(s.guards, m)
	return m.Wrap(f), nil
}

// tell logs a scope that it has not logged yet.
func (s *Server) tell(parts []idempotency.ScopePart) {
	var scope List
	for _, part := range parts {
		scope = append(scope, part.String())
	}
	if text := scope.String(); !slices.Contains(s.scopes, text) {
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
		ConnState:                    s.life.connState,
		ConnContext:                  func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		Protocols:                    new(http.Protocols),
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	failed := make(chan error, 2)
	go func() { failed <- server.Serve(listener{Listener: l, life: s.life}) }()
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

// drain ends the server's life.
func (s *Server) drain(server *http.Server) {
	s.life.begin()
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(s.config.Drain))
	defer cancel()
	shut := make(chan struct{})
	go func() {
		defer close(shut)
		// It closes the listeners and tells HTTP/2 clients to go away. It may
		// wait for more than we do; Close ends that.
		if err := server.Shutdown(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("shutting down", "error", err)
		}
	}()
	cut := s.life.wait(ctx)
	for _, m := range s.guards {
		if err := m.Drain(ctx); err != nil {
			s.log.Warn("answers are not stored yet; their retries run again", "error", err)
		}
	}
	server.Close()
	cancel()
	<-shut
	for _, t := range s.origin {
		t.CloseIdleConnections()
	}
	if cut > 0 {
		s.log.Warn("the time to finish was over", "cut off", cut, "after", time.Since(began).Round(time.Millisecond))
	}
	s.access.close()
}

type connKey struct{}

// serve is the handler of all requests.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	v := r.Context().Value(connKey{}).(*visit)
	if r.ProtoMajor == 1 && !v.Admit() || r.Method == "PRI" {
		w.Header().Set("Connection", "close")
		idempotency.WriteProblem(w, s.config.DocsURL, ambiguous)
		return
	}
	v.enter()
	defer s.life.leave(v)
	if s.access != nil {
		entry := s.access.begin(w, r)
		defer entry.end()
		w = entry
	}
	if r.Method == http.MethodConnect {
		idempotency.WriteProblem(w, s.config.DocsURL, noConnect)
		return
	}
	for i := range s.routes {
		if s.routes[i].matches(r) {
			s.routes[i].handler.ServeHTTP(w, r)
			return
		}
	}
	idempotency.WriteProblem(w, s.config.DocsURL, noRoute)
}

// matches reports whether the request is one of the route's.
func (r *route) matches(req *http.Request) bool {
	if r.Host != "" && !strings.EqualFold(r.Host, req.Host) && !strings.EqualFold(r.Host, hostname(req.Host)) {
		return false
	}
	if len(r.Methods) > 0 && !slices.Contains(r.Methods, req.Method) {
		return false
	}
	return r.pattern.match(req.URL.Path)
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
	ambiguous = idempotency.Problem{
		Name: "framing-ambiguous", Status: http.StatusBadRequest, Title: "The request is framed in two ways",
		Detail: "It has both Content-Length and Transfer-Encoding, or one of them in a form that readers understand differently.",
	}
	noConnect = idempotency.Problem{
		Name: "method-refused", Status: http.StatusMethodNotAllowed, Title: "CONNECT is not served here",
	}
	noRoute = idempotency.Problem{
		Name: "no-route", Status: http.StatusMisdirectedRequest, Title: "No route of the proxy is for this request",
		Detail: "Its configuration has neither a route that matches nor an upstream at the top.",
	}
)
