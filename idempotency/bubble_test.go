package idempotency_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// pipes is a listener whose connections stay in memory, so that a server can be in a
// synctest bubble.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { p.once.Do(func() { close(p.closed) }); return nil }

func (*pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 80} }

// dial returns a new connection.
func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// newBubbleServer starts a server in a bubble. The transport leads there, whatever the
// address.
func newBubbleServer(t *testing.T, h http.Handler) (*httptest.Server, *http.Transport) {
	t.Helper()
	p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	both := new(http.Protocols)
	both.SetHTTP1(true)
	both.SetUnencryptedHTTP2(true)
	server := &httptest.Server{Listener: p, Config: &http.Server{Handler: h, ErrorLog: newLog(io.Discard), ReadHeaderTimeout: time.Minute, Protocols: both}}
	server.Start()
	t.Cleanup(server.Close)
	base := &http.Transport{DialContext: p.dial}
	t.Cleanup(base.CloseIdleConnections)
	return server, base
}
