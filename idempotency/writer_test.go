package idempotency_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

func TestWriterOfGuardedHandler(t *testing.T) {
	log, logger := newLogger()
	g := newRig(t, &idempotency.Options{Logger: logger}, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		if _, _, err := rc.Hijack(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("Hijack of a guarded request: %v", err)
		}
		if _, ok := w.(interface{ Unwrap() http.ResponseWriter }); ok {
			t.Error("what is underneath a guarded writer can be reached")
		}
		if err := rc.SetWriteDeadline(noTime); err != nil {
			t.Errorf("SetWriteDeadline: %v", err)
		}
		w.WriteHeader(http.StatusCreated)
		w.WriteHeader(http.StatusAccepted) // has no effect, and is logged
		if n, err := w.Write(nil); n != 0 || err != nil {
			t.Errorf("Write of nothing: %d, %v", n, err)
		}
	})
	server := httptest.NewServer(g.h)
	defer server.Close()
	res, _, err := wire(t, server)
	if err != nil || res.StatusCode != http.StatusCreated {
		t.Errorf("answered %v, %v", res, err)
	}
	if !strings.Contains(log.String(), "called WriteHeader twice") {
		t.Errorf("logged %q", log)
	}
}

func TestWriterAfterTheEnd(t *testing.T) {
	var kept http.ResponseWriter
	g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) { kept = w })
	first := g.send()
	if _, err := kept.Write([]byte("late")); err == nil {
		t.Error("a writer works after its request")
	}
	kept.WriteHeader(http.StatusInternalServerError)
	kept.(http.Flusher).Flush()
	isReplay(t, g.send(), first)
}

// TestWriterWhileSettling: what a goroutine of the handler writes after it has
// returned is part of neither the stored answer nor the one that is sent.
func TestWriterWhileSettling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, _, h := newBatched(t, nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte("answer"))
			go func() {
				time.Sleep(time.Second)
				if n, err := w.Write([]byte(" and more")); n != 0 || err == nil {
					t.Errorf("Write after the handler: %d, %v", n, err)
				}
				if err := http.NewResponseController(w).Flush(); err == nil {
					t.Error("Flush after the handler went well")
				}
			}()
		}))
		store.fail(func(_ context.Context, op string) error {
			if op == "settle" {
				time.Sleep(2 * time.Second)
			}
			return nil
		})
		first := sendTo(h)
		if got := first.Body.String(); got != "answer" {
			t.Errorf("sent %q", got)
		}
		isReplay(t, sendTo(h), first)
	})
}

// TestFlushToClientThatLeft: Flush returns no error when the client has left, because the
// handler would stop and leave a part of its answer for the whole. It returns one if the
// writer below cannot be flushed.
func TestFlushToClientThatLeft(t *testing.T) {
	g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
		for range 3 {
			_, _ = w.Write([]byte("event "))
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Errorf("Flush: %v", err)
				return
			}
		}
	})
	g.h.ServeHTTP(&leftWriter{ResponseRecorder: httptest.NewRecorder(), n: 40_000}, request())
	if w := g.send(); w.Body.String() != strings.Repeat("event ", 3) {
		t.Errorf("the retry of a stream that its client left got %q", w.Body)
	}
	g.ran(1)
	plain := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).Flush(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("Flush without support: %v", err)
		}
	})
	plain.h.ServeHTTP(struct{ http.ResponseWriter }{httptest.NewRecorder()}, request())
}

// leftWriter is the ResponseWriter of a client that left after the first bytes.
type leftWriter struct {
	*httptest.ResponseRecorder
	n int
}

func (w *leftWriter) Write(p []byte) (int, error) {
	if w.n += len(p); w.n > 40_000 {
		return 0, io.ErrClosedPipe
	}
	return len(p), nil
}

func (w *leftWriter) FlushError() error {
	if w.n > 40_000 {
		return io.ErrClosedPipe
	}
	return nil
}

// TestHeadersOfOuterHandlers: what handlers around the middleware have set is
// part of the answer, once, and survives a refusal after the handler ran.
func TestHeadersOfOuterHandlers(t *testing.T) {
	fails := false
	g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Accept")
		w.Header().Set("X-Inner", "1")
		if fails {
			idempotency.Fail(r.Context(), idempotency.HungUp)
		}
	})
	outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Vary", "Origin")
		g.h.ServeHTTP(w, r)
	})
	for i := range 2 {
		w := httptest.NewRecorder()
		outer.ServeHTTP(w, request())
		if got := w.Header()["Vary"]; len(got) != 2 || got[0] != "Origin" || got[1] != "Accept" {
			t.Errorf("answer %d: Vary %q", i, got)
		}
	}
	fails = true
	w := httptest.NewRecorder()
	outer.ServeHTTP(w, request(withKey("other")))
	isProblem(t, w, "origin-hung-up", 502)
	if got := w.Header()["Vary"]; len(got) != 1 || w.Header().Get("X-Inner") != "" {
		t.Errorf("refused with %v", w.Header())
	}
}

// TestNestedMiddleware: a handler may be guarded twice.
func TestNestedMiddleware(t *testing.T) {
	inner := newRig(t, nil, nil)
	outer := newRig(t, nil, inner.h.ServeHTTP)
	first := outer.send()
	isFresh(t, first, 201)
	isReplay(t, outer.send(), first)
	inner.ran(1)
}

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
