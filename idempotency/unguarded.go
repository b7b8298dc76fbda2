package idempotency

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/dibs-go/dibs/internal/dialect"
)

// unguarded serves a request without a guard.
func (m *Middleware) unguarded(w http.ResponseWriter, r *http.Request, next http.Handler) {
	m.passUnguarded(&unguardedWriter{ResponseWriter: w, m: m, r: r}, next)
}

// passUnguarded serves the request of an unguardedWriter, and observes it.
func (m *Middleware) passUnguarded(w *unguardedWriter, next http.Handler) {
	began := time.Now()
	defer func() { m.observe(w.r, Event{Kind: EventUnguarded, Handler: time.Since(began)}) }()
	w.serve(next)
}

// unguarded serves a request that has no key without a guard.
func (x *exchange) unguarded(r *http.Request) {
	x.observed = true
	w := &unguardedWriter{ResponseWriter: x.w.ResponseWriter, m: x.m, r: r}
	if x.req.call.Kind == dialect.Listing {
		w.dialect, r.Header = x.dialect, x.dialect.Forward(r.Header)
	}
	x.m.passUnguarded(w, x.next)
}

// bypass runs the handler without a guard, because the store does not answer.
func (x *exchange) bypass() {
	if x.turn {
		x.turn = false
		x.m.duplicates.pass(x.req.key, noOriginal()) // the next waiter need not wait for a run without a guard
	}
	began := time.Now()
	x.w.Begin(began.Add(x.m.options.HandlerLimit))
	defer func() {
		x.event.Handler = time.Since(began)
		x.observe(EventBypassed)
	}()
	w := &unguardedWriter{ResponseWriter: x.w, m: x.m, r: x.req.withBody(x.req.Context()), bypassed: true}
	w.serve(x.next)
	x.event.Status = w.status
}

// An unguardedWriter is the ResponseWriter of a handler that is not guarded. It removes the fields
// that only the Middleware sends.
type unguardedWriter struct {
	http.ResponseWriter
	m        *Middleware
	r        *http.Request
	bypassed bool // because of the store
	headed   bool // the final header was sent
	status   int
	dialect  dialect.Dialect  // that reads the answer; nil: it is not read
	listener dialect.Listener // with dialect, from WriteHeader on
}

// serve runs the handler, and ends the answer.
func (u *unguardedWriter) serve(next http.Handler) {
	next.ServeHTTP(u, u.r)
	u.end()
	if u.listener != nil {
		u.listener.End(dialect.Answer{Status: u.status, Header: u.Header(), Streamed: true})
	}
}

// head prepares the header before it is sent.
func (u *unguardedWriter) head(status int) {
	if u.headed {
		return
	}
	u.headed = status >= 200 || status == http.StatusSwitchingProtocols
	u.status = status
	if u.dialect != nil {
		u.listener = u.dialect.Listen(status, u.Header(), u.m.options.MaxStored)
	}
	u.clean()
	u.m.warnReplaced(u.r, u.Header(), false)
}

// end prepares the header of a handler that wrote nothing, and the trailer.
func (u *unguardedWriter) end() {
	u.head(http.StatusOK)
	u.clean()
}

// clean removes the Middleware's own fields from the header, and marks it.
func (u *unguardedWriter) clean() {
	h := u.Header()
	takeOurs(h)
	if u.bypassed {
		h[bypassedField] = []string{bypassedForStore}
	}
}

func (u *unguardedWriter) WriteHeader(status int) {
	if status < 200 && status != http.StatusSwitchingProtocols && !u.r.ProtoAtLeast(1, 1) {
		return // HTTP/1.0 has no informational answers (RFC 9110, section 15.2)
	}
	u.head(status)
	u.ResponseWriter.WriteHeader(status)
}

func (u *unguardedWriter) Write(b []byte) (int, error) {
	u.head(http.StatusOK)
	if u.listener != nil {
		u.listener.Write(b)
	}
	return u.ResponseWriter.Write(b)
}

// ReadFrom lets the server send files without copying them.
func (u *unguardedWriter) ReadFrom(src io.Reader) (int64, error) {
	u.head(http.StatusOK)
	if u.listener != nil {
		return io.Copy(struct{ io.Writer }{u}, src)
	}
	return io.Copy(u.ResponseWriter, src)
}

func (u *unguardedWriter) Flush() { _ = u.FlushError() }

func (u *unguardedWriter) FlushError() error {
	u.head(http.StatusOK)
	return http.NewResponseController(u.ResponseWriter).Flush()
}

// Hijack serves libraries that ask for an http.Hijacker.
func (u *unguardedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(u.ResponseWriter).Hijack()
}

// Unwrap serves http.ResponseController for what is not here.
func (u *unguardedWriter) Unwrap() http.ResponseWriter { return u.ResponseWriter }
