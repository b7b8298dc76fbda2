//go:build nightly && unix

package command_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// gatewayPage has a configuration for each gateway.
const gatewayPage = "guides/gateways.md"

// gatewayConfig returns the page's configuration for a gateway, with the addresses of a test.
func gatewayConfig(t *testing.T, name, listen, proxy, auth string) string {
	t.Helper()
	language := map[string]string{"caddy": "caddyfile"}[name]
	if language == "" {
		language = name
	}
	_, port, err := net.SplitHostPort(listen)
	testkit.Must(t, err)
	here := strings.NewReplacer("127.0.0.1:8080", proxy, "127.0.0.1:9000", auth,
		"listen 80;", "listen "+listen+";", "bind :80", "bind "+listen, "http://shop.example", "http://:"+port)
	for _, b := range blocks(t, gatewayPage) {
		if b.language == language {
			return here.Replace(b.code)
		}
	}
	t.Fatalf("%s has no configuration of %s", gatewayPage, name)
	return ""
}

// gated is a service behind a proxy behind a gateway.
type gated struct {
	url    string // of the gateway
	method string // of what send sends; "": POST
	mu     sync.Mutex
	got    []http.Header // of what came to the service
	begun  chan struct{} // a request to /slow has come
	finish chan struct{} // it may end
}

func (g *gated) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	size, _ := io.Copy(io.Discard, r.Body)
	g.mu.Lock()
	r.Header.Set("Host", r.Host)
	g.got = append(g.got, r.Header)
	n := len(g.got)
	g.mu.Unlock()
	switch r.URL.Path {
	case "/slow":
		g.begun <- struct{}{}
		<-g.finish
	case "/hangs-up":
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "run %d, of %d bytes", n, size)
}

// count returns how many requests came to the service, and the last one.
func (g *gated) count() (int, http.Header) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.got) == 0 {
		return 0, nil
	}
	return len(g.got), g.got[len(g.got)-1]
}

// send sends a request of a user, who claims to be another one at another address.
func (g *gated) send(ctx context.Context, t *testing.T, user, path, key string, body io.Reader) (*http.Response, string, error) {
	t.Helper()
	r := testkit.Request(ctx, t, cmp.Or(g.method, http.MethodPost), g.url+path, body)
	if user != "" {
		r.SetBasicAuth(user, "pass-of-"+user)
	}
	r.Header.Set("Idempotency-Key", key)
	for _, forged := range []string{"X-User", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP", "Forwarded"} {
		r.Header.Set(forged, "forged")
	}
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response, string(text), err
}

// must is send with an answer.
func (g *gated) must(t *testing.T, user, path, key string, body io.Reader) (*http.Response, string) {
	t.Helper()
	response, text, err := g.send(t.Context(), t, user, path, key, body)
	testkit.Must(t, err)
	return response, text
}

// authenticates answers with the user of a request, who is ann or ben.
func authenticates(w http.ResponseWriter, r *http.Request) {
	user, pass, _ := r.BasicAuth()
	if user != "ann" && user != "ben" || pass != "pass-of-"+user {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	w.Header().Set("X-User", user)
}

// TestGateways: with the page's configuration, a gateway that Debian has passes on what the proxy
// needs, drops what a client forges, and sends no request twice.
func TestGateways(t *testing.T) {
	t.Parallel()
	auth := httptest.NewServer(http.HandlerFunc(authenticates))
	t.Cleanup(auth.Close)
	command := regexp.MustCompile(`(?s)(DIBS_\S+) dibs (proxy .*?)\n$`).FindStringSubmatch(blocks(t, gatewayPage)[0].code)
	if command == nil {
		t.Fatal("the page has no command")
	}
	for _, name := range []string{"nginx", "caddy", "haproxy"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := &gated{begun: make(chan struct{}), finish: make(chan struct{})}
			service := httptest.NewServer(g)
			t.Cleanup(service.Close)
			b, listen := newBench(t), servertest.Addr(t)
			here := strings.NewReplacer("127.0.0.1:8080", listen, "http://127.0.0.1:3000", service.URL, "redis://cache.internal", b.store, "\\\n", "")
			b.env = []string{command[1]}
			b.start(t, strings.Fields(here.Replace(command[2]))...).awaitListening(t)
			g.url = "http://" + servertest.Gateway(t, name, func(addr string) string {
				return gatewayConfig(t, name, addr, listen, auth.Listener.Addr().String())
			}).Addr()

			if response, _ := g.must(t, "", "/", "k", nil); response.StatusCode != http.StatusUnauthorized {
				t.Errorf("without a user: %d", response.StatusCode)
			}
			if n, _ := g.count(); n != 0 {
				t.Error("a request without a user came through")
			}
			first, text := g.must(t, "ann", "/", "k", strings.NewReader("amount=700"))
			n, header := g.count()
			if n != 1 || first.StatusCode != http.StatusCreated {
				t.Fatalf("%d, %q; the service ran %d", first.StatusCode, text, n)
			}
			for field, want := range map[string]string{
				"X-User": "ann", "X-Forwarded-For": "127.0.0.1, 127.0.0.1", "X-Forwarded-Proto": "http", "Idempotency-Key": "k",
				"X-Forwarded-Host": strings.TrimPrefix(g.url, "http://"), "Host": strings.TrimPrefix(g.url, "http://"),
				"Forwarded": "", "X-Real-IP": "",
			} {
				if got := strings.Join(header.Values(field), "|"); got != want {
					t.Errorf("the service gets %s: %q; want %q", field, got, want)
				}
			}
			if id := header.Get("X-Request-Id"); len(id) < 16 {
				t.Errorf("X-Request-Id is %q", id)
			}
			again, repeated := g.must(t, "ann", "/", "k", strings.NewReader("amount=700"))
			if again.Header.Get("Idempotent-Replayed") != "true" || repeated != text {
				t.Errorf("the retry gets %v %q; first it was %q", again.Header, repeated, text)
			}
			if other, got := g.must(t, "ben", "/", "k", strings.NewReader("amount=700")); other.Header.Get("Idempotent-Replayed") != "" || got == text {
				t.Errorf("another user with the same key gets %q", got)
			}
			if long, got := g.must(t, "ann", "/", "long", bytes.NewReader(make([]byte, 7<<20))); long.StatusCode != http.StatusCreated {
				t.Errorf("a body of 7 MiB: %d %q", long.StatusCode, got)
			}
			g.checkHangUps(t)
		})
	}
}

// checkHangUps: the run outlives its client, and a service that hangs up gets a request once.
func (g *gated) checkHangUps(t *testing.T) {
	t.Helper()
	before, _ := g.count()
	ctx, hangUp := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, _, err := g.send(ctx, t, "ann", "/slow", "slow", nil)
		gone <- err
	}()
	testkit.Await(t, "the slow request", g.begun)
	hangUp()
	if err := testkit.Await(t, "the client's end", gone); err == nil {
		t.Error("the client that hung up got an answer")
	}
	if running, text := g.must(t, "ann", "/slow", "slow", nil); running.StatusCode != http.StatusConflict || running.Header.Get("Retry-After") == "" {
		t.Errorf("while it runs: %d %q", running.StatusCode, text)
	}
	g.finish <- struct{}{}
	testkit.Eventually(t, "the retry gets the answer", func() bool {
		response, _ := g.must(t, "ann", "/slow", "slow", nil)
		return response.Header.Get("Idempotent-Replayed") == "true"
	})
	lost, text := g.must(t, "ann", "/hangs-up", "lost", nil)
	if lost.StatusCode != http.StatusBadGateway || !strings.Contains(text, "origin-hung-up") {
		t.Errorf("a service that hangs up: %d %q", lost.StatusCode, text)
	}
	if n, _ := g.count(); n != before+2 {
		t.Errorf("the service ran %d times, want 2", n-before)
	}
}

// breaking answers the first request of each connection, and hangs up on the second. It counts the
// requests whose path is /counted.
func breaking(t *testing.T, counted *atomic.Int64) (addr string) {
	t.Helper()
	return testkit.Serve(t, func(_ int, conn *net.TCPConn) {
		for from := bufio.NewReader(conn); ; {
			r, err := http.ReadRequest(from)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			if r.URL.Path == "/counted" {
				counted.Add(1)
				return
			}
			// Without a body, so that the connection is free before the gateway answers.
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
}

// TestGatewaysSendOnce: a server that hangs up gets a POST once. It gets a request twice where the
// page says so: a PUT behind nginx, and a POST without a body behind Caddy.
func TestGatewaysSendOnce(t *testing.T) {
	t.Parallel()
	auth := httptest.NewServer(http.HandlerFunc(authenticates))
	t.Cleanup(auth.Close)
	for name, test := range map[string]struct {
		gateway, method, body string
		instead, line         string // a line of the configuration, and another one
		want                  int64
	}{
		"nginx":                     {"nginx", "POST", "amount=700", "", "", 1},
		"nginx, no body":            {"nginx", "POST", "", "", "", 1},
		"nginx with non_idempotent": {"nginx", "POST", "amount=700", "proxy_pass http://dibs;", "proxy_next_upstream error non_idempotent; proxy_pass http://dibs;", 2},
		"nginx, PUT":                {"nginx", "PUT", "amount=700", "", "", 2},
		"nginx, PUT, off":           {"nginx", "PUT", "amount=700", "proxy_pass http://dibs;", "proxy_next_upstream off; proxy_pass http://dibs;", 1},
		"haproxy":                   {"haproxy", "POST", "amount=700", "", "", 1},
		"haproxy, no body":          {"haproxy", "POST", "", "", "", 1},
		"haproxy, PUT":              {"haproxy", "PUT", "amount=700", "", "", 1},
		"caddy":                     {"caddy", "POST", "amount=700", "", "", 1},
		"caddy, no body":            {"caddy", "POST", "", "", "", 2},
		"caddy, keepalive off":      {"caddy", "POST", "", "header_up -Forwarded", "transport http {\nkeepalive off\n}", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var counted atomic.Int64
			server, second := breaking(t, &counted), breaking(t, &counted)
			g := &gated{method: test.method, url: "http://" + servertest.Gateway(t, test.gateway, func(addr string) string {
				config := gatewayConfig(t, test.gateway, addr, server, auth.Listener.Addr().String())
				config = strings.Replace(config, "server "+server+";", "server "+server+"; server "+second+";", 1)
				return strings.Replace(config, test.instead, test.line, 1)
			}).Addr()}
			for range 2 { // so that there is a connection to each server
				if response, text := g.must(t, "ann", "/", "k", nil); response.StatusCode != http.StatusOK {
					t.Fatalf("%d %q", response.StatusCode, text)
				}
			}
			response, _ := g.must(t, "ann", "/counted", "counted", strings.NewReader(test.body))
			if response.StatusCode != http.StatusBadGateway || counted.Load() != test.want {
				t.Errorf("it was sent %d times, and answered %d; want %d times", counted.Load(), response.StatusCode, test.want)
			}
		})
	}
}
