package idempotency_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestWriterOfGuardedHandler(t *testing.T) {
	g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		if _, _, err := rc.Hijack(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("Hijack of a guarded request: %v", err)
		}
		if _, ok := w.(interface{ Unwrap() http.ResponseWriter }); ok {
			t.Error("what is underneath a guarded writer can be reached")
		}
		if err := rc.SetReadDeadline(noTime); err != nil {
			t.Errorf("SetReadDeadline: %v", err)
		}
		if err := rc.SetWriteDeadline(noTime); err != nil {
			t.Errorf("SetWriteDeadline: %v", err)
		}
		if err := rc.EnableFullDuplex(); err != nil {
			t.Errorf("EnableFullDuplex: %v", err)
		}
		w.WriteHeader(http.StatusCreated)
		w.WriteHeader(http.StatusAccepted) // logged, as net/http does
		if n, err := w.Write(nil); n != 0 || err != nil {
			t.Errorf("Write of nothing: %d, %v", n, err)
		}
	})
	var said strings.Builder
	server := httptest.NewUnstartedServer(g.h)
	server.Config.ErrorLog = newLog(&said)
	server.Start()
	res, _, err := wire(t, server)
	server.Close()
	if err != nil || res.StatusCode != http.StatusCreated {
		t.Errorf("answered %v, %v", res, err)
	}
	if !strings.Contains(said.String(), "superfluous response.WriteHeader call from github.com/dibs-go/dibs/idempotency_test.TestWriterOfGuardedHandler") {
		t.Errorf("logged %q", said.String())
	}
}

func TestWriterAfterTheEnd(t *testing.T) {
	var kept http.ResponseWriter
	var body io.Reader
	g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) { kept, body = w, r.Body })
	first := g.send()
	if _, err := kept.Write([]byte("late")); err == nil {
		t.Error("a writer works after its request")
	}
	kept.WriteHeader(http.StatusInternalServerError)
	kept.(http.Flusher).Flush()
	if _, err := body.Read(make([]byte, 1)); !errors.Is(err, http.ErrBodyReadAfterClose) {
		t.Errorf("a body is read after its request: %v", err)
	}
	isReplay(t, g.send(), first)
}

func TestWriterOfPassedHandler(t *testing.T) {
	g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello")
		_ = rw.Flush()
	})
	server := httptest.NewServer(g.h)
	defer server.Close()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\nIdempotency-Key: k\r\n\r\n")
	text, err := io.ReadAll(conn)
	if err != nil || !strings.HasSuffix(string(text), "hello") {
		t.Errorf("upgraded to %q, %v", text, err)
	}
}
