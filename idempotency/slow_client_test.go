package idempotency_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// long is more than a connection takes without a reader.
const long = 64 << 20

// writesLong writes a long answer, and does not look at its context.
func writesLong(w http.ResponseWriter, _ *http.Request) {
	part := make([]byte, 1<<20)
	for range long / len(part) {
		_, _ = w.Write(part)
	}
}

// A stuckWriter is a ResponseWriter without a connection, that blocks until open is closed.
type stuckWriter struct {
	*httptest.ResponseRecorder
	open chan struct{}
}

func (w stuckWriter) Write(p []byte) (int, error) {
	<-w.open
	return w.ResponseRecorder.Write(p)
}

func (w stuckWriter) WriteHeader(status int) {
	if status < 200 {
		<-w.open
		for range w.Header() { // as net/http does
		}
	}
	w.ResponseRecorder.WriteHeader(status)
}

// serveStuck serves a request with a stuckWriter. ended gets what ServeHTTP panicked with.
func (g *rig) serveStuck(r *http.Request) (open chan struct{}, ended chan any) {
	open, ended = make(chan struct{}), make(chan any, 1)
	go func() {
		defer func() { ended <- recover() }()
		g.h.ServeHTTP(stuckWriter{httptest.NewRecorder(), open}, r)
	}()
	return open, ended
}

// dialBubble starts a server in a bubble and returns a connection to it.
func dialBubble(t *testing.T, h http.Handler) net.Conn {
	_, base := newBubbleServer(t, h)
	c, err := base.DialContext(t.Context(), "", "")
	testkit.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// newServer starts a server of HTTP/1.1 and of HTTP/2 without TLS.
func newServer(t *testing.T, h http.Handler) *httptest.Server {
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// newKeyed returns POST /charges to a server, with the key.
func newKeyed(t *testing.T, url, key string) *http.Request {
	r := testkit.Request(t.Context(), t, http.MethodPost, url+"/charges", nil)
	r.Host = "example.com"
	r.Header.Set("Idempotency-Key", key)
	return r
}

// unread are clients that send a request with the key k and do not read the answer.
var unread = map[string]func(t *testing.T, url string){
	"of HTTP/1.1": func(t *testing.T, url string) {
		c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		testkit.Must(t, err)
		t.Cleanup(func() { _ = c.Close() })
		_ = newKeyed(t, url, "k").Write(c)
	},
	"of HTTP/2": func(t *testing.T, url string) {
		if res, err := testkit.HTTP2(t, 1<<20).RoundTrip(newKeyed(t, url, "k")); err == nil {
			t.Cleanup(func() { _ = res.Body.Close() })
		}
	},
	"of HTTP/2 that does not read its connection": func(t *testing.T, url string) {
		if res, err := testkit.Deaf(t).RoundTrip(newKeyed(t, url, "k")); err == nil {
			t.Cleanup(func() { _ = res.Body.Close() })
		}
	},
}
