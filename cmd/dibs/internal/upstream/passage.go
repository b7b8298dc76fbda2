package upstream

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
)

// passage is one request on its way to the origin, over as many connections as
// net/http tries. It holds the wall: once something of the request has been
// written, no other connection carries it.
type passage struct {
	cancel context.CancelCauseFunc

	safe   bool                 // net/http may send it again
	conn   atomic.Pointer[conn] // the last connection, if it is one of HTTP/1
	base   atomic.Int64         // what had been written to it before
	got    bool                 // there was a connection
	stale  bool                 // the last one had been used before
	fields atomic.Bool          // HTTP/2: a header field was on its way
}

// errHungUp: the origin closed a connection before a request was written to it.
var errHungUp = errors.New("the connection was closed while it was idle")

// errStray: an answer was on the connection before the request was.
var errStray = errors.New("the origin wrote more than its answer to another request")

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
	trace.GotFirstResponseByte = p.gotAnswer
	if base.Protocols.HTTP2() || base.Protocols.UnencryptedHTTP2() {
		// Where it is HTTP/1 for certain, conn counts, which costs less.
		trace.WroteHeaderField = p.wroteField
	}
	sent := *req.WithContext(ctx)
	if !p.safe {
		// net/http must not be able to read the body again.
		sent.GetBody = nil
	}
	if body != nil {
		sent.Body = body.reader()
	}
	res, err := base.RoundTrip(&sent)
	if err != nil {
		cancel(nil)
		if p.strayed() {
			err = errStray
		}
		return nil, err
	}
	if p.strayed() {
		cancel(nil)
		_ = res.Body.Close() // it is nobody's
		return nil, errStray
	}
	res.Request = req
	return res, nil
}

// gotConn is called with each connection that the request is about to use, on
// the goroutine that will write to it.
func (p *passage) gotConn(info httptrace.GotConnInfo) {
	if !p.safe && p.touched() {
		p.cancel(errSentBefore)
		if c, ok := info.Conn.(*conn); ok {
			c.closed.Store(true)
		}
		return
	}
	p.got, p.stale = true, info.Reused
	c, _ := info.Conn.(*conn)
	p.conn.Store(c)
	if c != nil {
		c.from = c.written.Load()
		p.base.Store(c.from)
		c.stale = info.Reused
		c.sent.Store(false)
	}
}

// gotAnswer is called when an answer begins. One that is there before anything of the
// request was written is what the origin wrote after its answer to another request.
func (p *passage) gotAnswer() {
	if c := p.conn.Load(); c != nil && !c.sent.Load() {
		c.stray.Store(true)
		c.closed.Store(true)
		_ = c.Close() // whatever comes of it, nobody uses it again
	}
}

func (p *passage) wroteField(string, []string) { p.fields.Store(true) }

// strayed reports whether what came on the last connection was no answer to the request.
func (p *passage) strayed() bool {
	c := p.conn.Load()
	return c != nil && c.stray.Load()
}

// touched reports whether anything of the request may have been written.
func (p *passage) touched() bool {
	if !p.got {
		return false
	}
	if c := p.conn.Load(); c != nil {
		return c.written.Load() != p.base.Load()
	}
	return p.fields.Load()
}

// conn is an HTTP/1 connection to the origin that counts what is written.
type conn struct {
	net.Conn
	written atomic.Int64
	closed  atomic.Bool // nothing may be written any more
	sent    atomic.Bool // something of the request may have been written
	stray   atomic.Bool // the origin wrote more than answers
	stale   bool        // the next write is the first after a pause
	from    int64       // written, before this request
	deaf    bool        // the origin takes no more of the request

	mu      sync.Mutex
	changed sync.Cond // of what follows
	reading bool      // net/http waits for bytes: it has used all that came before
	over    bool
}

func newConn(c net.Conn) *conn {
	w := &conn{Conn: c}
	w.changed.L = &w.mu
	return w
}

// Read reads from the origin.
func (c *conn) Read(p []byte) (int, error) {
	c.setReading(true)
	defer c.setReading(false)
	return c.Conn.Read(p)
}

func (c *conn) setReading(reading bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading = reading
	c.changed.Broadcast()
}

// Close closes the connection.
func (c *conn) Close() error {
	c.mu.Lock()
	c.over = true
	c.changed.Broadcast()
	c.mu.Unlock()
	return c.Conn.Close()
}

// awaitReader waits until net/http reads, or the connection is closed. Until then there
// may be bytes in its buffer that the origin wrote after its last answer, and that it
// would take for the answer to a request.
func (c *conn) awaitReader() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.reading && !c.over {
		c.changed.Wait()
	}
}

// Write writes to the origin, unless the wall is in the way.
func (c *conn) Write(p []byte) (int, error) {
	if c.stale {
		c.stale = false
		c.awaitReader()
		// net/http notices that the origin has closed an idle connection, but a
		// request can be faster. The kernel would take its bytes, and nobody
		// could tell that they never arrived.
		if c.deaf || hungUp(c.Conn) {
			return 0, errHungUp
		}
	}
	c.sent.Store(true) // before the bytes are, or the answer could be faster
	if c.closed.Load() {
		return 0, errSentBefore
	}
	if c.deaf {
		return len(p), nil
	}
	n, err := c.Conn.Write(p)
	c.written.Add(int64(n))
	if err != nil && c.written.Load() > c.from {
		// The origin may have answered before it closed the connection. net/http would
		// not read that after a failed write: what the next read finds decides.
		c.deaf = true
		return len(p), nil
	}
	return n, err
}
