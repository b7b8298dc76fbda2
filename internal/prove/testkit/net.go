package testkit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
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

// Output keeps what is written to it, by any number of goroutines: the output of a process, or a
// log.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write keeps the text.
func (o *Output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(text)
}

// String returns all that was written so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// With returns the lines that have all the texts.
func (o *Output) With(texts ...string) (lines []string) {
next:
	for line := range strings.Lines(o.String()) {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue next
			}
		}
		lines = append(lines, line)
	}
	return lines
}

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

// SlowBody is the body of a request and the ResponseWriter of its answer, without a network: a read that
// takes beyond the deadline of the connection fails. It serves one goroutine, in a synctest bubble.
type SlowBody struct {
	*httptest.ResponseRecorder
	*io.PipeReader
	To    *io.PipeWriter // what the client sends
	timer *time.Timer
}

// NewSlowBody returns a body of which nothing has been sent.
func NewSlowBody() *SlowBody {
	body, to := io.Pipe()
	return &SlowBody{ResponseRecorder: httptest.NewRecorder(), PipeReader: body, To: to}
}

// SetReadDeadline serves http.ResponseController.
func (s *SlowBody) SetReadDeadline(end time.Time) error {
	if s.timer != nil {
		s.timer.Stop()
	}
	if !end.IsZero() {
		s.timer = time.AfterFunc(time.Until(end), func() { s.CloseWithError(errors.New("the deadline of the connection")) })
	}
	return nil
}
