package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/dibs-go/dibs/cmd/dibs/internal/credential"
	"github.com/dibs-go/dibs/cmd/dibs/internal/upstream"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/memory"
	"github.com/dibs-go/dibs/internal/quantity"
)

// routing is what one configuration does with requests. A reload replaces it.
//
//	current ── reload ── retired ── its last request ends ── its answers are stored ── forgotten
type routing struct {
	config  *Config
	routes  []route
	guards  []*idempotency.Middleware
	origins []*upstream.Transport
	tokens  []*credential.Credential // of the page for operators

	requests sync.WaitGroup // that it serves
}

// route is a Route with its handler.
type route struct {
	Route
	handler http.Handler
}

// newRouting returns the routing of a configuration. The error names the setting that is wrong.
func (s *Server) newRouting(c *Config) (r *routing, err error) {
	if err := c.checkTemporary(); err != nil {
		return nil, err
	}
	r = &routing{config: c}
	if c.AdminTokens != "" {
		if r.tokens, err = credential.Read(c.AdminTokens); err != nil {
			return nil, fmt.Errorf("admin-tokens: %w", err)
		}
	}
	all := c.Routes
	if c.Upstream != "" {
		all = append(slices.Clip(all), Route{Policy: c.Policy})
	}
	before := shareMemory(all)
	defer func() {
		if err != nil {
			memory.Process().Resize(before)
		}
	}()
	for _, each := range all {
		h, err := s.handler(r, &each.Policy)
		if err != nil {
			return nil, err
		}
		if len(each.CORS) > 0 {
			h = &cors{next: h, pages: each.CORS}
		}
		r.routes = append(r.routes, route{Route: each, handler: h})
	}
	return r, nil
}

// shareMemory bounds the bodies of all routes together: by the largest max-body-memory, or the default.
// It returns the bound before.
func shareMemory(all []Route) (before int64) {
	before = memory.Process().Memory.Most()
	most := int64(0)
	for _, r := range all {
		most = max(most, r.MaxBodyMemory)
	}
	memory.Process().Resize(cmp.Or(most, memory.Limit()))
	return before
}

// enter returns the routing for a new request. Call requests.Done when the request ends.
func (s *Server) enter() *routing {
	s.mu.RLock()
	defer s.mu.RUnlock()
	s.current.requests.Add(1) // under mu, because retire must count each request
	return s.current
}

// reload reads the configuration again, and uses it for new requests. If it has a fault, or
// changes a setting that a running proxy cannot change, reload logs and returns that, and changes
// nothing.
func (s *Server) reload() error {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	now := s.config()
	next, err := now.source.reload()
	if err == nil {
		err = now.checkFixed(next)
	}
	if err == nil && next.MaxStoreTimeout() > s.storeTimeout {
		err = fmt.Errorf("store-timeout: a running proxy cannot wait longer than %s: restart the proxy", quantity.DurationText(s.storeTimeout))
	}
	var r *routing
	if err == nil {
		r, err = s.newRouting(next)
	}
	if err != nil {
		for _, fault := range faults(err) {
			s.log.Error("the configuration was not reloaded; the old one stays in use", "error", fault)
		}
		return err
	}
	next.setLevel()
	s.replace(r)
	s.log.Info("the configuration was reloaded")
	return nil
}

// replace makes new requests use the routing.
func (s *Server) replace(r *routing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired = append(s.retired, s.current)
	go s.retire(s.current)
	s.use(r)
}

// use makes requests use the routing. Call it under mu.
func (s *Server) use(r *routing) {
	s.current = r
	s.shell.UseTokens(r.tokens)
}

// faults returns the errors that an error joins.
func faults(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// checkFixed returns an error for each setting that differs in the next configuration and that a
// running proxy cannot change.
func (c *Config) checkFixed(next *Config) error {
	var changed []error
	after := settingsOf(next)
	for i, row := range settingsOf(c) {
		if row.tag.Get("fixed") != "" && row.text() != after[i].text() {
			changed = append(changed, fmt.Errorf("%s changed: restart the proxy", row.name))
		}
	}
	return errors.Join(changed...)
}

// retire waits until the routing serves no request and its answers are stored. Then it forgets
// the routing.
func (s *Server) retire(r *routing) {
	r.requests.Wait()
	r.closeIdle()
	r.drain(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired = slices.DeleteFunc(s.retired, func(other *routing) bool { return other == r })
}

// config returns the configuration for new requests.
func (s *Server) config() *Config {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.current.config
}

// inUse returns the routings that may serve requests or store answers.
func (s *Server) inUse() []*routing {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return append(slices.Clone(s.retired), s.current)
}

// wait waits until it serves no request. No request may come meanwhile.
func (r *routing) wait(ctx context.Context) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.requests.Wait()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// drain waits until the answers of all runs are stored. It returns an error for each middleware
// that still has some when ctx ends.
func (r *routing) drain(ctx context.Context) (errs []error) {
	for _, m := range r.guards {
		if err := m.Drain(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// closeIdle closes the connections to the origins that no request uses.
func (r *routing) closeIdle() {
	for _, t := range r.origins {
		t.CloseIdleConnections()
	}
}

// handlerOf returns the handler of the first route that matches the request; nil if none does.
func (r *routing) handlerOf(req *http.Request) http.Handler {
	for i := range r.routes {
		if r.routes[i].matches(req) {
			return r.routes[i].handler
		}
	}
	return nil
}

// matches reports whether the route is for the request. A method that overrides the request's
// counts too, because the origin may read either.
func (r *route) matches(req *http.Request) bool {
	if methods := r.Only; len(methods) > 0 && !slices.Contains(methods, req.Method) && !overridden(req, methods) {
		return false
	}
	return r.Host.match(req.Host) && r.Path.match(req.URL.Path)
}

// overridden reports whether a field of the request names one of the methods.
func overridden(req *http.Request, methods []string) bool {
	for _, name := range overrideFields {
		for _, line := range req.Header[name] {
			if slices.Contains(methods, strings.ToUpper(strings.TrimSpace(line))) {
				return true
			}
		}
	}
	return false
}

var overrideFields = idempotency.OverrideFields()
