package upstream

import (
	"net"
	"sync"
	"sync/atomic"
)

// conn is an HTTP/1 connection to the origin that counts the bytes written.
type conn struct {
	net.Conn
	written atomic.Int64
	closed  atomic.Bool // Write fails
	sent    atomic.Bool // a part of the request may have been written
	stray   atomic.Bool // the origin wrote more than answers
	stale   bool        // the connection was idle until the next Write
	from    int64       // written before this request
	discard bool        // the origin reads no more of the request

	mu      sync.Mutex
	changed sync.Cond // of reading and over
	reading bool      // net/http has used all bytes and waits for more
	over    bool      // closed
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

// awaitReader waits until net/http reads, or the connection is closed. Until then net/http's
// buffer may have bytes that the origin wrote after its last answer. net/http would take
// them for the answer to this request.
func (c *conn) awaitReader() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.reading && !c.over {
		c.changed.Wait()
	}
}

// Write writes to the origin. It fails if the request was sent on another connection.
func (c *conn) Write(p []byte) (int, error) {
	if c.stale {
		c.stale = false
		c.awaitReader()
		// A request can be faster than net/http notices that the origin closed an idle
		// connection. The kernel would accept its bytes, and they would seem sent.
		if c.discard || hungUp(c.Conn) {
			return 0, errHungUp
		}
	}
	c.sent.Store(true) // before the bytes, because the answer could be faster
	if c.closed.Load() {
		return 0, errSentBefore
	}
	if c.discard {
		return len(p), nil
	}
	n, err := c.Conn.Write(p)
	c.written.Add(int64(n))
	if err != nil && c.written.Load() > c.from {
		// The origin may have answered before it closed the connection. net/http would
		// not read that answer after a failed write, so the write seems to succeed.
		c.discard = true
		return len(p), nil
	}
	return n, err
}
