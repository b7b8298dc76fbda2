package idempotency

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/internal/dialect"
	"github.com/dibs-go/dibs/internal/memory"
	"github.com/dibs-go/dibs/internal/slow"
)

// Middleware guards HTTP handlers: requests with one Idempotency-Key run once, and every retry gets
// the first one's answer. A Middleware is one policy over one client; make several for several
// policies. It is safe for concurrent use.
type Middleware struct {
	client     *dibs.Client
	options    Options
	duplicates duplicates
	serving    []*memory.Budget // requests with a key, by number; none without a bound
	memory     *memory.Shares
	speak      func(*http.Request) (dialect.Dialect, *http.Request)

	unsettled atomic.Int64 // requests that claim a key or have not settled it
	warned    struct{ noPrincipal, changingScheme, replaced, noKey, otherRequest, twoHeads, unreadable, noDeadline sync.Once }
}

// Event.Err of a request that a bound refused names the bound.
var (
	errMaxConcurrent = errors.New("idempotency: MaxConcurrent is reached")
	errMaxBodyMemory = errors.New("idempotency: MaxBodyMemory is reached")
)

// New returns a Middleware over the client, or an *OptionError if an option is wrong. Call Drain before
// the client is closed.
func New(client *dibs.Client, o *Options) (*Middleware, error) {
	if client == nil {
		return nil, errors.New("idempotency: New needs a client; it got nil")
	}
	options := o.withDefaults(client.Options())
	if faults := options.faults(); len(faults) > 0 {
		return nil, faults[0]
	}
	m := &Middleware{
		client: client, options: options, duplicates: newDuplicates(),
		memory: options.shares(),
	}
	if n := options.MaxConcurrent; n > 0 {
		m.serving = []*memory.Budget{memory.New(int64(n))}
	}
	m.speak = m.dialects()
	return m, nil
}

// Wrap returns a handler that guards next. The context of a guarded request carries its lease (see
// dibs.FromContext) and does not end when the client goes away. It ends with cause dibs.ErrLost
// when the lease is lost, and with context.DeadlineExceeded at Options.HandlerLimit. The
// ResponseWriter holds the answer back until it is stored, unless the handler flushes. Wrap panics if
// next is nil.
func (m *Middleware) Wrap(next http.Handler) http.Handler {
	if next == nil {
		panic("idempotency: Wrap was given no handler; pass the handler to guard")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
}

// Drain waits until no request claims a key or runs under one, and no answer is being stored in the
// background. If ctx ends first, Drain returns its cause. Call it when the server has shut down and
// before the client is closed. A handler may outlive the server if its HTTP/2 client reset the stream.
func (m *Middleware) Drain(ctx context.Context) error {
	// Not a WaitGroup, because handlers that outlive the server's limit may begin to store.
	for m.unsettled.Load() > 0 {
		if err := backoff.Sleep(ctx, 10*time.Millisecond); err != nil {
			return err
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
		slow.Answer(w, r, func() { m.options.WriteProblem(w, r, problemMethod) })
		m.observe(r, Event{Kind: EventInvalid, Status: problemMethod.Status, Problem: problemMethod.Name})
	case !m.guardsAny(r) && !(m.options.MCP != nil && r.Method == http.MethodDelete): // which ends a session
		m.unguarded(w, r, next)
	default:
		m.guard(w, r, next)
	}
}

// guard serves a request of a guarded method. When the transfer of its answer was broken, the client
// must not take the part for the whole.
func (m *Middleware) guard(w http.ResponseWriter, r *http.Request, next http.Handler) {
	p := &slow.Writer{ResponseWriter: w, Pause: m.options.BodyTimeout, Stuck: func(err error) {
		m.warn(&m.warned.noDeadline, r, "a client takes its answer too slowly, and the write to it cannot be ended: "+
			"the ResponseWriter of an outer handler needs a method Unwrap or SetWriteDeadline", "error", err)
	}}
	defer p.End()
	x := &exchange{m: m, w: p, next: next, slot: memory.Open(m.serving...), room: memory.Open(m.memory.Memory)}
	x.dialect, x.req.Request = m.speak(r)
	x.req.body.room, x.req.body.within, x.req.body.onDisk = memory.Open(m.memory.Memory), memory.Open(m.memory.Memory), memory.Open(m.memory.Files)
	x.receive()
	if p.WasCut() {
		panic(http.ErrAbortHandler)
	}
}

// An exchange is a guarded request while it is served. Each step ends by calling the next one.
//
//	receive ── malformed, too large, too many requests ── refused       request.go
//	   │
//	 join ── runs in this process ── waits, or 409 ── answered, replay  duplicates.go
//	   │
//	 claim ── held, done, mismatch, unknown, no store ── answered       run.go
//	   │
//	 handle ── panic, failure, broken ── abandoned
//	   │
//	conclude ── settle ── lost ── 503                                   settle.go
//	   │
//	 send
type exchange struct {
	m        *Middleware
	w        *slow.Writer
	next     http.Handler
	dialect  dialect.Dialect
	req      request
	event    Event
	observed bool           // Options.Observe was called
	slot     memory.Account // of Options.MaxConcurrent
	room     memory.Account // of the answer, and of a record
	turn     bool           // it was woken to claim the key, before others that wait
}

// end removes what is left of the request. If Options.Observe was not called, the handler or a
// function of Options has panicked.
func (x *exchange) end() {
	if !x.observed {
		x.event.Status = 0
		x.observe(EventInterrupted)
	}
	x.req.body.remove()
	x.room.Close()
	x.slot.Close()
}

// guards reports whether requests of the method are guarded when they carry a key.
func (m *Middleware) guards(method string) bool {
	if method == "" || slices.Contains(safeMethods, method) {
		return false
	}
	return len(m.options.Methods) == 0 || slices.Contains(m.options.Methods, method)
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
