package testkit

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
)

// Listen listens on a free port of 127.0.0.1 until the test ends.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// Serve serves each connection to a free port of 127.0.0.1 until the test ends, and returns the
// address. serve gets the number of the connection, from 0. What it returns from is closed.
func Serve(t testing.TB, serve func(i int, c *net.TCPConn)) (addr string) {
	t.Helper()
	l := Listen(t)
	go func() {
		for i := 0; ; i++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(i, c.(*net.TCPConn))
			}()
		}
	}()
	return l.Addr().String()
}

// Request returns a request for a client to send.
func Request(ctx context.Context, t testing.TB, method, url string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, url, body)
	Must(t, err)
	return r
}
