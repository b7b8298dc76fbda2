//go:build unix

package command_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestHealthcheck: it exits with 0 only if the proxy says that it is ready, however the address
// is written, and never asks a proxy of the environment.
func TestHealthcheck(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.env = []string{"HTTP_PROXY=http://127.0.0.1:1", "http_proxy=http://127.0.0.1:1"}
	admin := servertest.Addr(t)
	_, port, _ := strings.Cut(admin, ":")
	b.says(t, 1, "", "it does not answer", "healthcheck", admin)
	p := b.start(t, "proxy", "--listen", "127.0.0.1:0", "--admin", admin, "--upstream", "http://127.0.0.1:1")
	waitFor(t, p, "http://"+admin+"/readyz")
	for _, addr := range []string{admin, ":" + port, "0.0.0.0:" + port, "localhost:" + port, "http://" + admin, "http://" + admin + "/", admin + "/"} {
		b.says(t, 0, "ready\n", "", "healthcheck", addr)
	}
	b.env = append(b.env, "DIBS_PROXY_ADMIN="+admin)
	b.says(t, 0, "ready\n", "", "healthcheck")
	b.says(t, 1, "", "it does not answer", "healthcheck", "https://"+admin)

	answers := func(h http.HandlerFunc) string {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	b.says(t, 1, "", "it is not ready: 503 Service Unavailable: the store does not answer", "healthcheck", answers(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the store does not answer", http.StatusServiceUnavailable)
	}))
	for _, other := range []http.HandlerFunc{
		http.NotFound,
		func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("<html>\nready\n</html>")) },
		func(http.ResponseWriter, *http.Request) {},
	} {
		b.says(t, 1, "", "another service answers here", "healthcheck", answers(other))
	}
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ready\n")) }))
	t.Cleanup(secure.Close)
	b.says(t, 0, "ready\n", "", "healthcheck", secure.URL)
	b.env = []string{"DIBS_PROXY_ADMIN_TLS=true"}
	b.says(t, 0, "ready\n", "", "healthcheck", strings.TrimPrefix(secure.URL, "https://"))

	b.env = nil
	b.says(t, 64, "", "no address is named; name the proxy's --admin", "healthcheck")
	for _, addr := range []string{"9090", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:x", " 127.0.0.1:9090", "127.0.0.1:9090/readyz", "http://a@127.0.0.1:9090", "ftp://127.0.0.1:9090", "https://127.0.0.1", "unix:"} {
		b.says(t, 64, "", "is not HOST:PORT", "healthcheck", addr)
	}
	b.says(t, 64, "", "name one address", "healthcheck", admin, admin)
}

// TestHealthcheckOfServe: a server is asked without a credential, over TCP, TLS or a Unix socket.
func TestHealthcheckOfServe(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir, err := os.MkdirTemp("", "dibs") // short, because the path of a socket must be
	testkit.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	b.says(t, 64, "", "--listen is unix: without a path", "serve", "--listen", "unix:")
	socket := "unix:" + dir + "/s"
	b.says(t, 1, "", "it does not answer", "healthcheck", socket)
	b.write(t, "tokens", fmt.Sprintf("shop %x shop use\n", sha256.Sum256([]byte(secret))))
	b.certificate(t)
	listen := servertest.Addr(t)
	b.start(t, "serve", "--listen", listen, "--listen", socket, "--tokens", "tokens", "--tls-cert", "tls.crt", "--tls-key", "tls.key").awaitListening(t)
	b.says(t, 0, "ready\n", "", "healthcheck", socket)
	b.says(t, 0, "ready\n", "", "healthcheck", "http+"+socket) // which it prints
	b.says(t, 0, "ready\n", "", "healthcheck", "https://"+listen)
	b.says(t, 1, "", "400 Bad Request: Client sent an HTTP request to an HTTPS server", "healthcheck", listen)
	b.env = []string{"DIBS_PROXY_ADMIN_TLS=true"}
	b.says(t, 0, "ready\n", "", "healthcheck", socket)
}

// certificate writes tls.crt and tls.key, for 127.0.0.1.
func (b *bench) certificate(t *testing.T) {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	pair := s.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	testkit.Must(t, err)
	b.write(t, "tls.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})))
	b.write(t, "tls.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
}

// TestProxyNeedsTemporaryFiles: a proxy that could not keep a long body does not start, and says
// why. The doctor finds it before.
func TestProxyNeedsTemporaryFiles(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.write(t, "proxy.yaml", "upstream: http://127.0.0.1:1\nadmin: 127.0.0.1:1\nlisten: 127.0.0.1:0\n")
	b.inspector(t)
	b.env = []string{"TMPDIR=" + b.path("missing")}
	const why = "max-body: bodies of more than 1MiB are kept in temporary files, and none can be made"
	b.says(t, 64, "", why, "proxy", "--config", "proxy.yaml")
	b.says(t, 1, "dangerous  temporary: The proxy does not start: "+why, "", "doctor", "--config", "proxy.yaml")
}

// TestProxyLog: what the process of the proxy writes to stderr is JSON lines. That holds for
// lines of net/http's transport too, which quote an answer that the log must not have.
func TestProxyLog(t *testing.T) {
	const stray = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret"
	l := testkit.Listen(t)
	answered := make(chan struct{})
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			return
		}
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		<-answered
		io.WriteString(c, stray)
		io.Copy(io.Discard, c)
	}()
	b := newBench(t)
	b.env = []string{"DIBS_PROXY_LOG_LEVEL=debug"}
	p := b.start(t, "proxy", "--listen", "127.0.0.1:0", "--upstream", "http://"+l.Addr().String(), "--log-format", "json")
	testkit.Eventually(t, "the proxy listens", func() bool { return strings.Contains(p.stdout.String(), "\n") })
	var listening struct{ Msg, URL, Upstream string }
	testkit.Must(t, json.Unmarshal([]byte(p.stdout.String()), &listening))
	if listening.Msg != "dibs proxy: listening on "+listening.URL || listening.Upstream != "http://"+l.Addr().String() {
		t.Errorf("it says %s", p.stdout.String())
	}
	response, err := http.Get(listening.URL)
	testkit.Must(t, err)
	testkit.Must(t, response.Body.Close())
	close(answered)
	testkit.Eventually(t, "the transport logs", func() bool { return strings.Contains(p.stderr.String(), "Unsolicited response") })
	p.signal(t, syscall.SIGTERM)
	if code := p.code(t); code != 0 {
		t.Errorf("the proxy ends with %d", code)
	}
	counts := map[string]int{}
	for line := range strings.Lines(p.stderr.String()) {
		var fields struct{ Level, Msg string }
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Errorf("%q: %v", line, err)
		}
		counts[fields.Level+" "+fields.Msg]++
	}
	if counts["INFO the server drains: it ends when the requests under way are answered"] != 1 || counts["INFO the server has ended"] != 1 ||
		counts["INFO request"] != 1 || counts["WARN Unsolicited response received on idle HTTP channel"] != 1 || strings.Contains(p.stderr.String(), "secret") {
		t.Errorf("the log is %s", p.stderr.String())
	}
}

// TestProxyStartFails: a proxy that cannot start says so in text, whatever the format of its log.
func TestProxyStartFails(t *testing.T) {
	l := testkit.Listen(t)
	code, _, stderr := newBench(t).run(t, "proxy", "--listen", l.Addr().String(), "--upstream", "http://x", "--log-format", "json")
	var last string
	for line := range strings.Lines(stderr) {
		last = line
	}
	if code != 1 || !strings.HasPrefix(last, "dibs proxy: listen: ") {
		t.Errorf("%d %q; want 1 and a text", code, stderr)
	}
}

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

// TestPageAndMetricsOfAProcessAgree: dibs serve and dibs proxy look at the store once for both. So a page
// that nobody had open when a wait began knows when it began, because somebody read the metrics.
func TestPageAndMetricsOfAProcessAgree(t *testing.T) {
	for name, args := range map[string][]string{
		"serve": {"serve", "--listen", "127.0.0.1:0"},
		"proxy": {"proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "--admin", "127.0.0.1:0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			s := b.inspector(t)
			p := b.start(t, args...)
			testkit.Eventually(t, "the address", func() bool { return strings.Contains(p.stdout.String(), "\n") })
			urls := regexp.MustCompile(`http://[0-9.:]+`).FindAllString(p.stdout.String(), -1)
			if len(urls) == 0 {
				t.Fatalf("it says %q", p.stdout.String())
			}
			get := func(path string) string {
				resp, err := http.Get(urls[len(urls)-1] + path)
				testkit.Must(t, err)
				defer resp.Body.Close()
				text, err := io.ReadAll(resp.Body)
				testkit.Must(t, err)
				return string(text)
			}
			testkit.Eventually(t, "the metrics of the store", func() bool { return strings.Contains(get("/metrics"), "\ndibs_waiters{") })
			for range 2 {
				c := store.Claim{Key: store.Key{Name: "k"}, Token: store.NewToken(), Mode: store.Queue, TTL: time.Hour, PlaceTTL: time.Hour, Permits: 1, Weight: 1}
				testkit.Must(t, s.Claim(t.Context(), []store.Claim{c}, make([]store.Answer, 1)))
			}
			var shown struct {
				Waited struct {
					MS    int64
					Least bool
				}
			}
			testkit.Eventually(t, "the wait on the page", func() bool {
				testkit.Must(t, json.Unmarshal([]byte(get("/page/key?ns=&key=aw")), &shown))
				return shown.Waited.MS > 0
			})
			if shown.Waited.Least {
				t.Error("the page does not know when the wait began")
			}
		})
	}
}
