package upstream

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
)

// A trip is one call of net/http for a request, over all connections that net/http tries.
// Once a part of the request has been written, it stops net/http from using another
// connection.
type trip struct {
	cancel context.CancelCauseFunc

	safe   bool                 // net/http may send the request again
	conn   atomic.Pointer[conn] // the last connection, if it speaks HTTP/1
	base   atomic.Int64         // the bytes that were written to it before
	got    bool                 // there was a connection
	stale  bool                 // the last connection was used before
	fields atomic.Bool          // HTTP/2: a header field was written
}

// errHungUp says that the origin closed a connection before a request was written to it.
var errHungUp = errors.New("the connection was closed while it was idle")

// errStray says that an answer was on the connection before the request.
var errStray = errors.New("the origin wrote more than its answer to another request")

// errSentBefore says that net/http tried to send a request again.
var errSentBefore = errors.New("the request was sent before")

// send is RoundTrip of base. A request that is not safe is written to one connection only.
func (t *trip) send(base *http.Transport, req *http.Request, body *lastingBody) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	t.cancel = cancel
	// ReverseProxy has made a trace for this request alone. Its unused hooks are set,
	// because combining two traces takes reflection.
	trace := httptrace.ContextClientTrace(ctx)
	if trace == nil {
		trace = new(httptrace.ClientTrace)
		ctx = httptrace.WithClientTrace(ctx, trace)
	}
	trace.GotConn = t.gotConn
	trace.GotFirstResponseByte = t.gotAnswer
	if base.Protocols.HTTP2() || base.Protocols.UnencryptedHTTP2() {
		// On HTTP/1, conn counts, which costs less.
		trace.WroteHeaderField = t.wroteField
	}
	sent := *req.WithContext(ctx)
	if !t.safe {
		sent.GetBody = nil // so that net/http cannot send the body again
	}
	if body != nil {
		sent.Body = body.reader()
	}
	res, err := base.RoundTrip(&sent)
	if err != nil {
		cancel(nil)
		if t.strayed() {
			err = errStray
		}
		return nil, err
	}
	if t.strayed() {
		cancel(nil)
		_ = res.Body.Close()
		return nil, errStray
	}
	res.Request = req
	return res, nil
}

// gotConn is called with each connection for the request, on the goroutine that will write
// to it.
func (t *trip) gotConn(info httptrace.GotConnInfo) {
	if !t.safe && t.touched() {
		t.cancel(errSentBefore)
		if c, ok := info.Conn.(*conn); ok {
			c.closed.Store(true)
		}
		return
	}
	t.got, t.stale = true, info.Reused
	c, _ := info.Conn.(*conn)
	t.conn.Store(c)
	if c != nil {
		c.from = c.written.Load()
		t.base.Store(c.from)
		c.stale = info.Reused
		c.sent.Store(false)
	}
}

// gotAnswer is called when an answer begins. If no part of the request was written yet, the
// origin wrote it after its answer to another request.
func (t *trip) gotAnswer() {
	if c := t.conn.Load(); c != nil && !c.sent.Load() {
		c.stray.Store(true)
		c.closed.Store(true)
		_ = c.Close()
	}
}

func (t *trip) wroteField(string, []string) { t.fields.Store(true) }

// strayed reports whether the answer on the last connection was not for the request.
func (t *trip) strayed() bool {
	c := t.conn.Load()
	return c != nil && c.stray.Load()
}

// touched reports whether a part of the request may have been written.
func (t *trip) touched() bool {
	if !t.got {
		return false
	}
	if c := t.conn.Load(); c != nil {
		return c.written.Load() != t.base.Load()
	}
	return t.fields.Load()
}
