package testkit

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// HTTP2 returns a transport of HTTP/2 without TLS. Its client takes window bytes of an answer that
// is not read.
func HTTP2(t testing.TB, window int) *http.Transport {
	tr := &http.Transport{
		Protocols:             new(http.Protocols),
		HTTP2:                 &http.HTTP2Config{MaxReceiveBufferPerConnection: 1 << 30, MaxReceiveBufferPerStream: window},
		ExpectContinueTimeout: time.Minute,
	}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// Deaf returns a transport as HTTP2 does, for one connection that is not read after its first bytes.
func Deaf(t testing.TB) *http.Transport {
	conn := &deafConn{left: 64 << 10, closed: make(chan struct{})}
	tr := HTTP2(t, 1<<30)
	tr.DialContext = func(_ context.Context, network, address string) (_ net.Conn, err error) {
		if conn.Conn, err = net.Dial(network, address); err == nil {
			t.Cleanup(func() { _ = conn.Close() })
		}
		return conn, err
	}
	return tr
}

// A deafConn is a connection that is not read after the first bytes.
type deafConn struct {
	net.Conn
	left   int
	closed chan struct{}
	once   sync.Once
}

func (c *deafConn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		<-c.closed
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

func (c *deafConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
