package server

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestEveryListenerIsServed: a door without TLS serves plain HTTP on each of its listeners, and they all
// end when the server does.
func TestEveryListenerIsServed(t *testing.T) {
	s, err := New(&Options{Log: slog.New(slog.DiscardHandler)})
	testkit.Must(t, err)
	listeners := make([]net.Listener, 8)
	for i := range listeners {
		listeners[i] = testkit.Listen(t)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	life := Life{Times: func() (delay, drain time.Duration) { return 0, testkit.Limit }}
	door := Door{Server: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { WriteText(w, http.StatusOK, "here") })}, Listeners: listeners}
	go func() { ended <- s.Serve(ctx, life, nil, door) }()
	for _, l := range listeners {
		resp, err := (&http.Client{Timeout: testkit.Limit}).Get("http://" + l.Addr().String())
		testkit.Must(t, err)
		text, err := io.ReadAll(resp.Body)
		testkit.Must(t, err)
		resp.Body.Close()
		if string(text) != "here\n" {
			t.Errorf("%s is answered %q", l.Addr(), text)
		}
	}
	stop()
	testkit.Check(t, testkit.Await(t, "the end of the server", ended))
	for _, l := range listeners {
		if conn, err := net.Dial("tcp", l.Addr().String()); err == nil {
			conn.Close()
			t.Errorf("%s still listens", l.Addr())
		}
	}
}

// TestNamesOfTheServer: the names by which no other site can be reached.
func TestNamesOfTheServer(t *testing.T) {
	for host, own := range map[string]bool{
		"localhost": true, "LOCALHOST:1": true, "localhost.": true, "127.0.0.1": true, "10.0.0.1:80": true, "[::1]:80": true, "proxy": true,
		"a.b.svc": true, "a.b.svc.cluster.local:9090": true, "x.INTERNAL": true, "": false, ".": false, "a.example": false, "a.example.:80": false, "internal.example": false,
		"10.0.0.1.example": false, "evilsvc.example": false, "a.notlocal": false,
	} {
		if isOwnName(host) != own {
			t.Errorf("%q is a name of the server: %v; want %v", host, !own, own)
		}
	}
}
