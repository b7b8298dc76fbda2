package idempotency

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/linger"
)

// Middleware guards HTTP handlers: requests with one Idempotency-Key run once,
// and every retry gets the first one's answer. It is one policy over one
// client; make several for several policies. It is safe for concurrent use.
type Middleware struct {
	client  *dibs.Client
	options Options
	filter  filter

	tables  tables
	tethers sync.Pool // of *tether, none of which has ended
	storing alarms    // of calls of the store
	running alarms    // of handlers

	background background
	warn       warnings
	counts     struct {
		controlIgnored, storeFailed, storeRecovered, storeGivenUp, bypassed atomic.Uint64
	}
}

// errStoreTimeout: the store was waited for as long as Options.StoreTimeout.
var errStoreTimeout = fmt.Errorf("idempotency: %w in time: %w", dibs.ErrStore, context.DeadlineExceeded)

// New returns a Middleware over the client. The error names the option that is
// wrong. Call Drain before the client is closed.
func New(client *dibs.Client, o *Options) (*Middleware, error) {
	if client == nil {
		return nil, errors.New("idempotency: New was given no client")
	}
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	m := &Middleware{client: client, options: options, filter: newFilter(&options)}
	m.tethers.New = newTether
	m.tables.seed = maphash.MakeSeed()
	m.storing.init(options.StoreTimeout, errStoreTimeout)
	m.running.init(options.HandlerLimit, context.DeadlineExceeded)
	return m, nil
}

// Wrap returns a handler that guards next. A guarded request's context carries
// its lease (see dibs.FromContext), does not end when the client goes away,
// and ends with cause dibs.ErrLost when the lease is lost and with
// context.DeadlineExceeded at Options.HandlerLimit. The ResponseWriter holds
// the answer back until it is stored, unless it is flushed.
func (m *Middleware) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
}

// Stats returns the counts so far.
func (m *Middleware) Stats() Stats {
	return Stats{
		ControlIgnored: m.counts.controlIgnored.Load(),
		StoreFailed:    m.counts.storeFailed.Load(),
		StoreRecovered: m.counts.storeRecovered.Load(),
		StoreGivenUp:   m.counts.storeGivenUp.Load(),
		Bypassed:       m.counts.bypassed.Load(),
	}
}

// Drain waits until no answer is left to be stored in the background, or for
// the end of ctx, whose cause it then returns. Call it when the server has shut
// down and before the client is closed.
func (m *Middleware) Drain(ctx context.Context) error {
	select {
	case <-m.background.idle():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// background counts goroutines, and lets wait for none while new ones come.
type background struct {
	mu      sync.Mutex
	n       int
	waiting chan struct{} // closed when none is left; nil when nobody waits
}

func (b *background) run(f func()) {
	b.mu.Lock()
	b.n++
	b.mu.Unlock()
	go func() {
		defer b.done()
		f()
	}()
}

func (b *background) done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.n--; b.n == 0 && b.waiting != nil {
		close(b.waiting)
		b.waiting = nil
	}
}

// idle returns a channel that is closed when nothing runs.
func (b *background) idle() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.n == 0 {
		idle := make(chan struct{})
		close(idle)
		return idle
	}
	if b.waiting == nil {
		b.waiting = make(chan struct{})
	}
	return b.waiting
}

// count counts what an application asked for in vain.
func (m *Middleware) count(c control) {
	if c.ignored > 0 {
		m.counts.controlIgnored.Add(uint64(c.ignored))
	}
}

// serve decides whether the request is guarded.
func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	switch {
	case isUpgrade(r):
		m.unguarded(w, r, next)
	case r.Method == http.MethodConnect:
		w.Header().Set("Allow", "GET, HEAD, OPTIONS, TRACE, POST, PUT, PATCH, DELETE")
		linger.Answer(w, r, func() { WriteProblem(w, r, m.options.DocsURL, problemMethod) })
		m.report(r, Event{Outcome: OutcomeInvalid, Status: problemMethod.Status})
	case !m.guards(r.Method):
		m.unguarded(w, r, next)
	default:
		m.guard(w, r, next)
	}
}

// guards reports whether requests of the method are guarded when they carry a
// key.
func (m *Middleware) guards(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return false
	}
	return len(m.options.Methods) == 0 || slices.Contains(m.options.Methods, method)
}

// unguarded passes a request on that is not to be guarded.
func (m *Middleware) unguarded(w http.ResponseWriter, r *http.Request, next http.Handler) {
	began := time.Now()
	defer func() { m.report(r, Event{Outcome: OutcomeUnguarded, Handler: time.Since(began)}) }()
	m.pass(w, r, next, false)
}

// report tells who observes of a request that no visit is made for.
func (m *Middleware) report(r *http.Request, e Event) {
	if m.options.Observe != nil {
		e.Method = r.Method
		m.options.Observe(r.Context(), e)
	}
}

// pass serves a request without a guard.
func (m *Middleware) pass(w http.ResponseWriter, r *http.Request, next http.Handler, bypassed bool) {
	p := &passer{ResponseWriter: w, m: m, r: r, bypassed: bypassed}
	next.ServeHTTP(p, r)
	p.end()
}

// isUpgrade reports whether the request asks for another protocol. An offer of
// HTTP/2 or TLS is none: whoever does not take it up serves the request itself,
// and curl makes that offer with a POST.
func isUpgrade(r *http.Request) bool {
	if r.Method == http.MethodConnect {
		return len(r.Header[":protocol"]) > 0 // RFC 8441
	}
	offers := r.Header["Upgrade"]
	if len(offers) == 0 || !hasListToken(r.Header["Connection"], "upgrade") {
		return false
	}
	for _, line := range offers {
		for offer := range strings.SplitSeq(line, ",") {
			name, _, _ := strings.Cut(strings.Trim(offer, " \t"), "/")
			switch strings.ToLower(name) {
			case "", "h2c", "http", "tls":
			default:
				return true
			}
		}
	}
	return false
}
