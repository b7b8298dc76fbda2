//go:build unix

package command_test

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// over returns a client that sends every request over a Unix socket.
func over(t *testing.T, socket string) *http.Client {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// TestProxyOverSockets: the proxy listens on Unix sockets and reaches its origin over one. A duplicate gets the
// stored answer. What a peer says of the client counts only if sockets are trusted. A request that was passed
// on is not an operator's.
func TestProxyOverSockets(t *testing.T) {
	b := newBench(t)
	l, err := net.Listen("unix", b.path("app"))
	testkit.Must(t, err)
	runs := make(chan struct{}, 10)
	app := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs <- struct{}{}
		fmt.Fprintf(w, "%s from %q", r.Host, r.Header["X-Forwarded-For"])
	})}
	go func() { _ = app.Serve(l) }()
	t.Cleanup(func() { app.Close() })
	for _, test := range []struct{ trusted, from string }{{"", "[]"}, {"unix", `["9.9.9.9"]`}, {"10.0.0.0/8", "[]"}} {
		b.env = []string{"DIBS_PROXY_FORWARDED=true", "DIBS_PROXY_TRUSTED_PROXIES=" + test.trusted, "DIBS_PROXY_NAMESPACE=of" + strings.Trim(test.trusted, "/0.")}
		p := b.start(t, "proxy", "--listen", "unix:"+b.path("p"), "--admin", "unix:"+b.path("admin"), "--upstream", "unix:"+b.path("app"))
		p.awaitListening(t)
		for name, mode := range map[string]fs.FileMode{"p": 0o660, "admin": 0o600} {
			if info, err := os.Stat(b.path(name)); err != nil || info.Mode().Perm() != mode {
				t.Errorf("%s: %v, %v; want the mode %v", name, info.Mode(), err, mode)
			}
		}
		send := func(client *http.Client, path string, fields ...string) (*http.Response, string) {
			r, err := http.NewRequestWithContext(t.Context(), "POST", "http://app.example"+path, strings.NewReader("a=1"))
			testkit.Must(t, err)
			for i := 0; i < len(fields); i += 2 {
				r.Header.Set(fields[i], fields[i+1])
			}
			res, err := client.Do(r)
			testkit.Must(t, err)
			defer res.Body.Close()
			text, err := io.ReadAll(res.Body)
			testkit.Must(t, err)
			return res, string(text)
		}
		for i := range 2 {
			res, text := send(over(t, b.path("p")), "/charges", "Idempotency-Key", "k", "X-Forwarded-For", "9.9.9.9")
			if want := "app.example from " + test.from; res.StatusCode != 200 || text != want || (res.Header.Get("Idempotent-Replayed") != "") != (i == 1) {
				t.Errorf("trusted %q, request %d: %d %q, %v; want %q", test.trusted, i, res.StatusCode, text, res.Header, want)
			}
		}
		if n := len(runs); n != 1 {
			t.Errorf("trusted %q: it ran %d times", test.trusted, n)
		}
		<-runs
		if code, stdout, stderr := b.run(t, "healthcheck", "unix:"+b.path("admin")); code != 0 {
			t.Errorf("the health check: %d %s%s", code, stdout, stderr)
		}
		if res, text := send(over(t, b.path("admin")), "/reload", "X-Forwarded-For", "9.9.9.9"); res.StatusCode != 403 {
			t.Errorf("a reload that was passed on: %d %s", res.StatusCode, text)
		}
		p.checkEnds(t)
		if b.exists("p") || b.exists("admin") {
			t.Error("the sockets are left behind")
		}
	}
}
