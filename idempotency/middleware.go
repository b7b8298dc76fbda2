package idempotency

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/linger"
)

// Middleware guards HTTP handlers: requests with one Idempotency-Key run once, and every retry gets
// the first one's answer. A Middleware is one policy over one client; make several for several
// policies. It is safe for concurrent use.
type Middleware struct {
	client  *dibs.Client
	options Options
	local   localRuns
	serving *bound // requests with a key
	waiting *bound // duplicates
	memory  *bound // bytes of bodies
	quota   *quota

	unsettled atomic.Int64 // requests that claim a key or have not settled it
	warned    struct{ noPrincipal, changingScheme, replaced, noKey, otherRequest, twoHeads, unreadable, noDeadline sync.Once }
	mu        sync.Mutex
	stats     Stats // under mu
}

// New returns a Middleware over the client. The error names the option that is wrong. Call Drain
// before the client is closed.
func New(client *dibs.Client, o *Options) (*Middleware, error) {
	if client == nil {
		return nil, errors.New("idempotency: New needs a client; it got nil")
	}
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	m := &Middleware{
		client: client, options: options,
		serving: newBound(int64(options.MaxConcurrent)), waiting: newBound(int64(options.MaxWaiting)),
		memory: newBound(options.MaxBodyMemory), quota: newQuota(options.Quota, options.Retention),
	}
	m.local.running, m.local.waiting = make(map[string]*localRun), make(map[string][]waiter)
	return m, nil
}

// Wrap returns a handler that guards next. The context of a guarded request carries its lease (see
// dibs.FromContext) and does not end when the client goes away. It ends with cause dibs.ErrLost
// when the lease is lost, and with context.DeadlineExceeded at Options.HandlerLimit. The
// ResponseWriter holds the answer back until it is stored, unless the handler flushes.
func (m *Middleware) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
}

// Stats returns the counts so far.
func (m *Middleware) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stats
}

// count changes a count.
func (m *Middleware) count(change func(*Stats)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.stats)
}

// Drain waits until no request claims a key or runs under one, and no answer is being stored in the
// background. If ctx ends first, Drain returns its cause. Call it when the server has shut down and
// before the client is closed. A handler may outlive the server if its HTTP/2 client reset the stream.
func (m *Middleware) Drain(ctx context.Context) error {
	// Not a WaitGroup, because handlers that outlive the server's limit may begin to store.
	for m.unsettled.Load() > 0 {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// serve decides whether the request is guarded. It does not look at Upgrade, because an origin may
// ignore the field and serve the request as it stands.
func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	switch {
	case r.Method == http.MethodConnect && len(r.Header[":protocol"]) > 0: // RFC 8441
		m.unguarded(w, r, next)
	case r.Method == http.MethodConnect:
		w.Header().Set("Allow", "GET, HEAD, OPTIONS, TRACE, POST, PUT, PATCH, DELETE")
		linger.Answer(w, r, func() { WriteProblem(w, r, m.options.DocsURL, problemMethod) })
		m.observe(r, Event{Outcome: OutcomeInvalid, Status: problemMethod.Status, Problem: problemMethod.Name})
	case !m.guardsAny(r):
		m.unguarded(w, r, next)
	default:
		m.guard(w, r, next)
	}
}

// overrideFields are the fields in which a client names another method than the request's. Many
// frameworks read them.
var overrideFields = []string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override"}

// OverrideFields returns the request fields by which frameworks let a client override the method,
// in canonical form. A request whose method, or one of these fields, is a guarded method is guarded.
func OverrideFields() []string { return slices.Clone(overrideFields) }

// guardsAny reports whether the request's method, or one that overrides it, is guarded.
func (m *Middleware) guardsAny(r *http.Request) bool {
	if m.guards(r.Method) {
		return true
	}
	for _, name := range overrideFields {
		for _, line := range r.Header[name] {
			if m.guards(strings.ToUpper(strings.TrimSpace(line))) {
				return true
			}
		}
	}
	return false
}

// guards reports whether requests of the method are guarded when they carry a key.
func (m *Middleware) guards(method string) bool {
	if method == "" || slices.Contains(safeMethods, method) {
		return false
	}
	return len(m.options.Methods) == 0 || slices.Contains(m.options.Methods, method)
}

// unguarded serves a request without a guard.
func (m *Middleware) unguarded(w http.ResponseWriter, r *http.Request, next http.Handler) {
	began := time.Now()
	defer func() { m.observe(r, Event{Outcome: OutcomeUnguarded, Handler: time.Since(began)}) }()
	m.pass(w, r, next, false)
}

// observe calls Options.Observe.
func (m *Middleware) observe(r *http.Request, e Event) {
	e.Method = r.Method
	m.options.Observe(r.Context(), e)
}

// warnScope warns if the scope cannot tell principals apart as it is meant to.
func (m *Middleware) warnScope(r *http.Request, principal []byte) {
	if len(principal) == 0 && !m.options.scopeIsNone() {
		m.warn(&m.warned.noPrincipal, r, "a request came without credentials: all requests without credentials share keys",
			"scope", m.options.scopeText())
	}
	if scheme := m.options.changingScheme(r); scheme != "" {
		m.warn(&m.warned.changingScheme, r, "retries will not be recognised, because Authorization differs in every request of this scheme: "+
			"name a header that an authenticating gateway sets in the scope", "scheme", scheme, "scope", m.options.scopeText())
	}
}

// warn logs the first warning of its kind.
func (m *Middleware) warn(kind *sync.Once, r *http.Request, text string, args ...any) {
	kind.Do(func() { m.options.Logger.Warn(text, append(args, "method", r.Method, "path", r.URL.Path)...) })
}
