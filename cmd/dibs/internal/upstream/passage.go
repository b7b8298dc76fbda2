package upstream

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
)

// passage is one request on its way to the origin, over as many connections as
// net/http tries. It holds the wall: once something of the request has been
// written, no other connection carries it.
type passage struct {
	cancel context.CancelCauseFunc

	conn   *conn       // the last connection, if it is one of HTTP/1
	base   int64       // what had been written to it before
	got    bool        // there was a connection
	stale  bool        // the last one had been used before
	fields atomic.Bool // HTTP/2: a header field was on its way
}

// errHungUp: the origin closed a connection before a request was written to it.
var errHungUp = errors.New("the connection was closed while it was idle")

// errSentBefore ends an attempt to send a request a second time.
var errSentBefore = errors.New("the request was sent before")

// send is RoundTrip with the wall.
func (p *passage) send(base *http.Transport, req *http.Request, body *lastingBody) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	p.cancel = cancel
	// A request that comes through a reverse proxy has a trace of its own, made
	// for it alone: its unused hooks are taken, because putting two traces
	// together takes reflection.
	trace := httptrace.ContextClientTrace(ctx)
	if trace == nil {
		trace = new(httptrace.ClientTrace)
		ctx = httptrace.WithClientTrace(ctx, trace)
	}
	trace.GotConn = p.gotConn
	if base.Protocols.HTTP2() || base.Protocols.UnencryptedHTTP2() {
		// Where it is HTTP/1 for certain, conn counts, which costs less.
		trace.WroteHeaderField = p.wroteField
	}
	sent := *req.WithContext(ctx)
	// net/http must not be able to read the body again.
	sent.GetBody = nil
	if body != nil {
		sent.Body = body.reader()
	}
	res, err := base.RoundTrip(&sent)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	res.Request = req
	return res, nil
}

// gotConn is called with each connection that the request is about to use, on
// the goroutine that will write to it.
func (p *passage) gotConn(info httptrace.GotConnInfo) {
	if p.touched() {
		p.cancel(errSentBefore)
		if c, ok := info.Conn.(*conn); ok {
			c.closed.Store(true)
		}
		return
	}
	p.got, p.stale = true, info.Reused
	if c, ok := info.Conn.(*conn); ok {
		p.conn, p.base = c, c.written.Load()
		c.stale = info.Reused
		return
	}
	p.conn = nil
}

func (p *passage) wroteField(string, []string) { p.fields.Store(true) }

// touched reports whether anything of the request may have been written.
func (p *passage) touched() bool {
	switch {
	case !p.got:
		return false
	case p.conn != nil:
		return p.conn.written.Load() != p.base
	}
	return p.fields.Load()
}

// conn is an HTTP/1 connection to the origin that counts what is written.
type conn struct {
	net.Conn
	written atomic.Int64
	closed  atomic.Bool // nothing may be written any more
	stale   bool        // the next write is the first after a pause
}

// Write writes to the origin, unless the wall is in the way.
func (c *conn) Write(p []byte) (int, error) {
	if c.closed.Load() {
		return 0, errSentBefore
	}
	if c.stale {
		c.stale = false
		// net/http notices that the origin has closed an idle connection, but a
		// request can be faster. The kernel would take its bytes, and nobody
		// could tell that they never arrived.
		if hungUp(c.Conn) {
			return 0, errHungUp
		}
	}
	n, err := c.Conn.Write(p)
	c.written.Add(int64(n))
	return n, err
}
