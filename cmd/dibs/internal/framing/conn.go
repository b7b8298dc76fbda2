package framing

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Conn is a server's connection that reads along. Its zero value with a Conn
// set is ready.
type Conn struct {
	net.Conn

	mu      sync.Mutex // a server may read in the background
	scanner Scanner
	heard   time.Time // when the last bytes of a body came that has not ended
	served  int       // requests that reached the handler
	limit   deadline

	aside   atomic.Bool // what follows is not HTTP/1
	limited atomic.Bool // there is a write deadline
}

// Read reads from the connection and scans what it read.
func (c *Conn) Read(p []byte) (int, error) {
	for {
		if err := c.beginRead(); err != nil {
			return 0, err
		}
		n, err := c.Conn.Read(p)
		if c.endRead(p[:n], err) {
			return n, err
		}
	}
}

// scan is called under the lock.
func (c *Conn) scan(p []byte) {
	c.scanner.Scan(p)
	if c.scanner.state == aside && c.scanner.bad == 0 {
		c.aside.Store(true)
	}
	if c.scanner.Owing() {
		c.heard = time.Now()
	}
}

// Admit is called once by the handler of each HTTP/1 request of the
// connection, in their order. It reports whether the request's framing means
// one thing only.
func (c *Conn) Admit() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.served++
	return c.scanner.bad == 0 || c.served < c.scanner.bad
}

// Aside tells that what follows on the connection is not HTTP/1 requests.
func (c *Conn) Aside() { c.aside.Store(true) }

// Silent returns for how long the peer has sent nothing of the body that it
// owes to the request that is being served; 0 when it owes none.
func (c *Conn) Silent() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.aside.Load() || !c.scanner.Owing() || c.scanner.requests != c.served {
		return 0
	}
	return time.Since(c.heard)
}
