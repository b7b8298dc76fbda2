package framing

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Listener hands out connections that watch their framing.
type Listener struct {
	net.Listener
}

// Accept returns a *Conn.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &Conn{Conn: c}, nil
}

// Conn is a server's connection that reads along. Its zero value with a Conn
// set is ready.
type Conn struct {
	net.Conn

	mu      sync.Mutex // guards scanner: a server may read in the background
	scanner Scanner

	bad   atomic.Int64 // the first ambiguous request; 0: none
	owing atomic.Bool  // the peer has begun a request and not sent all of it
	aside atomic.Bool
	heard atomic.Int64 // when the last bytes came, in UnixNano

	served atomic.Int64 // requests that reached the handler
}

// Read reads from the connection and scans what it read.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && !c.aside.Load() {
		c.mu.Lock()
		c.scanner.Scan(p[:n])
		bad, owing, aside := c.scanner.bad, c.scanner.Owing(), c.scanner.state == aside
		c.mu.Unlock()
		if bad != 0 {
			c.bad.Store(int64(bad))
		}
		if aside {
			c.aside.Store(true)
		}
		c.owing.Store(owing)
		if owing {
			c.heard.Store(time.Now().UnixNano())
		}
	}
	return n, err
}

// Admit is called once by the handler of each HTTP/1 request of the
// connection, in their order. It reports whether the request's framing means
// one thing only.
func (c *Conn) Admit() bool {
	served := c.served.Add(1)
	bad := c.bad.Load()
	return bad == 0 || served < bad
}

// Aside tells that what follows on the connection is not HTTP/1 requests.
func (c *Conn) Aside() {
	c.aside.Store(true)
	c.owing.Store(false)
}

// Silent returns for how long the peer, in the middle of sending a request,
// has sent nothing; 0 when it is not in the middle of one.
func (c *Conn) Silent() time.Duration {
	if !c.owing.Load() {
		return 0
	}
	return time.Since(time.Unix(0, c.heard.Load()))
}
