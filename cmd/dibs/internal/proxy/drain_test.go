package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// echoing starts an origin that upgrades connections to an echo, and answers other requests.
func echoing(t *testing.T) string {
	return origin(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		io.Copy(c, rw)
	})
}

// upgrade returns a connection that the proxy has upgraded.
func (r *running) upgrade(t *testing.T) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, in := raw(t, r.url, "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	if res, err := http.ReadResponse(in, nil); err != nil || res.StatusCode != 101 {
		t.Fatalf("%v %v", res, err)
	}
	return c, in
}

// isEchoed fails the test unless the connection still works.
func isEchoed(t *testing.T, c net.Conn, in *bufio.Reader) {
	t.Helper()
	io.WriteString(c, "still here\n")
	if got, err := in.ReadString('\n'); got != "still here\n" {
		t.Fatalf("the upgraded connection echoes %q, %v", got, err)
	}
}

// stopping begins to stop the proxy, and returns a channel that is closed when it has.
func (r *running) stopping() <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.stop()
	}()
	return ended
}

// refuses reports whether the proxy accepts no connections.
func (r *running) refuses() bool {
	c, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err == nil {
		c.Close()
	}
	return err != nil
}

// TestDrainWaitsForUpgradedConnections: a proxy that ends waits until upgraded connections are
// closed, also those of an old configuration, and not only for its last ordinary request.
func TestDrainWaitsForUpgradedConnections(t *testing.T) {
	p := start(t, echoing(t), "drain: 1h\n")
	old, oldIn := p.upgrade(t)
	p.reconfigure(t, "drain: 2h\n")
	c, in := p.upgrade(t)
	if res, _ := p.sendKey(t, "k"); res.StatusCode != 200 {
		t.Errorf("the request got %d", res.StatusCode)
	}
	ended := p.stopping()
	testkit.Eventually(t, "the end of listening", p.refuses)
	isEchoed(t, c, in)
	c.Close()
	isEchoed(t, old, oldIn)
	select {
	case <-ended:
		t.Error("the proxy ended before the upgraded connection")
	default:
	}
	old.Close()
	<-ended
	if log := p.logs.String(); strings.Count(log, "status=101") != 2 || strings.Contains(log, "aborted") {
		t.Errorf("the log is %s; want two lines of the upgraded connections", log)
	}
}

// TestDrainLimitsUpgradedConnections: drain bounds the wait for upgraded connections, and the log
// says that they were cut off.
func TestDrainLimitsUpgradedConnections(t *testing.T) {
	p := start(t, echoing(t), "drain: 10ms\n")
	p.upgrade(t)
	p.stop()
	if log := p.logs.String(); strings.Count(log, "were aborted, because they took longer than --drain") != 1 {
		t.Errorf("the log is %s", log)
	}
}

// TestDrainDelay: for the time of drain-delay a proxy that ends is not ready, and still serves requests
// on new connections. Then it drains.
func TestDrainDelay(t *testing.T) {
	store := inMemory(t)
	s, _ := newServer(t, store, "--drain-delay=1h")
	admin := s.adminHandler()
	ready := func() int {
		w := httptest.NewRecorder()
		admin.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/readyz", nil))
		return w.Code
	}
	l := testkit.Listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l, nil, nil) }()
	if status := ready(); status != 200 {
		t.Errorf("before the signal /readyz is %d", status)
	}
	cancel()
	testkit.Eventually(t, "the proxy to be not ready", func() bool { return ready() == 503 })
	if res, _ := send(t, "http://"+l.Addr().String(), "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); res.StatusCode != 502 { // there is no origin
		t.Errorf("a new request got %d", res.StatusCode)
	}
	l.Close()
	if err := <-served; err == nil {
		t.Error("the proxy did not listen until the end of the delay")
	}
	p := start(t, echoing(t), "drain-delay: 1ms\n")
	if p.stop(); !p.refuses() {
		t.Error("after the delay the proxy still listens")
	}
}

// reloadBy asks the admin address for a reload.
func (r *running) reloadBy(t *testing.T, method string, fields ...string) (int, string) {
	t.Helper()
	req := testkit.Request(t.Context(), t, method, r.admin+"/reload", nil)
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	testkit.Must(t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	testkit.Must(t, err)
	return res.StatusCode, string(text)
}

// TestReloadByPost: a POST to the admin address reloads the configuration. It answers with the faults
// and changes nothing if there are any, and pages in browsers cannot ask for it.
func TestReloadByPost(t *testing.T) {
	p := start(t, newBareOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\norigin").url, "wait: 1s\n")
	first := p.server.config()
	for text, want := range map[string][]string{
		"wait: soon\nleese: 1s\n":                    {":1:7: wait: ", ":2:1: unknown field"},
		"namespace: a\nadmin: 127.0.0.1:1\n":         {"admin changed: restart the proxy", "namespace changed: restart the proxy"},
		"listen: 8080\n":                             {"write :8080"},
		"routes:\n  - {path: /**}\n  - {path: /a}\n": {":3:6: path: the route /a is never used"},
		"wait: 2s\nstore-timeout: 1h\n":              {"store-timeout: a running proxy cannot wait longer than 4s: restart the proxy"},
	} {
		replace(t, p.file(), []byte(text))
		status, got := p.reloadBy(t, "POST")
		if status != 422 || strings.Count(got, "\n") != len(want) {
			t.Errorf("%s\n%d %s", text, status, got)
		}
		for _, part := range want {
			if !strings.Contains(got, part) {
				t.Errorf("%s\nthe answer is %s; want %q", text, got, part)
			}
		}
	}
	if p.server.config() != first {
		t.Error("a fault changed the configuration")
	}
	replace(t, p.file(), []byte("wait: 2s\n"))
	for _, test := range []struct {
		method string
		fields []string
		want   int
	}{
		{"POST", []string{"Origin", "https://evil.example"}, 403},
		{"POST", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"GET", nil, 405},
	} {
		if status, _ := p.reloadBy(t, test.method, test.fields...); status != test.want || p.server.config() != first {
			t.Errorf("%s %v: %d; want %d", test.method, test.fields, status, test.want)
		}
	}
	if status, text := p.reloadBy(t, "POST"); status != 200 || p.server.config() == first || fmt.Sprint(p.server.config().Wait) != "2s" {
		t.Errorf("%d %s", status, text)
	}
	if _, body := send(t, p.url, "POST /reload HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"); body != "origin" {
		t.Errorf("on the proxy's own address: %q", body)
	}
}
