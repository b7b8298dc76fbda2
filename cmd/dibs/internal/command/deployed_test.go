//go:build unix

package command_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// deployed is a proxy or a server as a file of deploy/ starts it.
type deployed struct {
	args     []string
	config   string // the text of /etc/dibs/proxy.yaml, if there is one
	upstream string // its URL, as the file names it
	store    string
	text     string // of a file whose comment has the command that makes the tokens
}

// checkServes starts the program with addresses and files of this machine. The proxy or the server
// does its work, and ends.
func (d *deployed) checkServes(t *testing.T) {
	t.Helper()
	b := newBench(t)
	b.store = d.store
	if d.args[0] == "serve" {
		d.checkLends(t, b)
		return
	}
	origin := counting(t)
	listen, admin := servertest.Addr(t), servertest.Addr(t)
	here := strings.NewReplacer("0.0.0.0:8080", listen, "0.0.0.0:9090", admin, "127.0.0.1:9090", admin, d.upstream, origin.URL, "/etc/dibs/proxy.yaml", b.path("proxy.yaml"))
	b.write(t, "proxy.yaml", here.Replace(d.config))
	p := b.start(t, strings.Split(here.Replace(strings.Join(d.args, "\n")), "\n")...)
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		waitFor(t, p, "http://"+admin+path)
	}
	sendTwice(t, "http://"+listen)
	p.checkEnds(t)
}

// awaitListening waits until the server accepts connections.
func (p *program) awaitListening(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "it listens", func() bool {
		select {
		case <-p.done:
			t.Fatalf("the server ended: %s", p.stderr.String())
		default:
		}
		return strings.Contains(p.stdout.String(), "listening on")
	})
}

// checkEnds ends the program as systemd and a container do.
func (p *program) checkEnds(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGTERM)
	if code := p.code(t); code != 0 {
		t.Errorf("it ends with %d", code)
	}
}

// makesTokens finds the command that prints a line of tokens.
var makesTokens = regexp.MustCompile(`(?m)^#   (echo .*) >\S*tokens$`)

// checkLends: a command runs under a key of the server. If there are tokens, it needs one, and
// SIGHUP replaces them without a pause.
func (d *deployed) checkLends(t *testing.T, b *bench) {
	t.Helper()
	dir, err := os.MkdirTemp("", "dibs") // short, because the path of a socket must be
	testkit.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	listen := servertest.Addr(t)
	text := strings.Join(d.args, "\n")
	secure, tokens := strings.Contains(text, "--tls-cert"), strings.Contains(text, "--tokens")
	here := strings.NewReplacer("0.0.0.0:7331", listen, ":7331", listen, "/run/dibs/", dir+"/",
		"/etc/dibs-tls/", b.dir+"/", "/etc/dibs/", b.dir+"/", "/run/secrets/", b.dir+"/")
	admin, url := listen, "http://%s"+listen
	switch {
	case strings.Contains(text, "unix:"):
		admin, url = "unix:"+dir+"/dibs.sock", "http+unix:"+dir+"/dibs.sock"
	case secure:
		b.certificate(t)
		b.env = []string{"SSL_CERT_FILE=" + b.path("tls.crt")}
		url = "https://%s" + listen
	}
	line := func(name, token string) string {
		return fmt.Sprintf("%s %x shop use\n", name, sha256.Sum256([]byte(token)))
	}
	first := line("shop", "first")
	if command := makesTokens.FindStringSubmatch(d.text); command != nil {
		made, err := exec.Command("sh", "-ec", "TOKEN=first; "+command[1]).Output()
		testkit.Must(t, err)
		first = string(made)
	}
	b.write(t, "tokens", first)
	p := b.start(t, strings.Split(here.Replace(text), "\n")...)
	if secure {
		admin = "https://" + admin
	}
	p.awaitListening(t)
	b.says(t, 0, "ready\n", "", "healthcheck", admin)
	lends := func(token string) bool {
		at := url
		if strings.Contains(url, "%s") {
			at = fmt.Sprintf(url, token)
		}
		code, said, why := b.run(t, "run", "--store", at, "invoice 42", "--", "echo", "held")
		// It ends with 70 if the token was replaced while the command ran.
		if ran := code == 0 || code == 70; ran != (said == "held\n") || code != 0 && !strings.Contains(why, "credential") {
			t.Errorf("with %q the command exited with %d: %s%s", token, code, said, why)
		}
		return code == 0
	}
	if !tokens {
		if !lends("") {
			t.Error("it lends nothing")
		}
		p.checkEnds(t)
		return
	}
	for token, want := range map[string]bool{"": false, ":wrong@": false, ":first@": true} {
		if lends(token) != want {
			t.Errorf("it lends to %q: %v", token, !want)
		}
	}
	b.write(t, "tokens", first+line("shop-2", "second"))
	p.signal(t, syscall.SIGHUP)
	testkit.Eventually(t, "the second token is known", func() bool { return lends(":second@") })
	if !lends(":first@") {
		t.Error("the first token is refused while its line is there")
	}
	b.write(t, "tokens", line("shop-2", "second"))
	p.signal(t, syscall.SIGHUP)
	testkit.Eventually(t, "the first token is refused", func() bool { return !lends(":first@") })
	p.checkEnds(t)
}

// counting returns an origin that counts its runs.
func counting(t *testing.T) *httptest.Server {
	t.Helper()
	var runs atomic.Int64
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, err := io.Copy(io.Discard, r.Body); err != nil || n < 1<<20 {
			http.Error(w, fmt.Sprintf("the body has %d bytes, %v", n, err), http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, "run %d", runs.Add(1))
	}))
	t.Cleanup(origin.Close)
	return origin
}

// sendTwice sends a request that no memory keeps, 2 MB, and its retry: it ran once.
func sendTwice(t *testing.T, proxy string) {
	t.Helper()
	for range 2 {
		request, err := http.NewRequestWithContext(t.Context(), "POST", proxy+"/v1/charges/17", strings.NewReader(strings.Repeat("amount=7&", 2<<20/9)))
		testkit.Must(t, err)
		request.Header.Set("Idempotency-Key", `"order-17"`)
		response, err := http.DefaultClient.Do(request)
		testkit.Must(t, err)
		text, err := io.ReadAll(response.Body)
		testkit.Must(t, err)
		testkit.Must(t, response.Body.Close())
		if response.StatusCode != 200 || string(text) != "run 1" {
			t.Errorf("the answer is %s %q", response.Status, text)
		}
	}
}

// waitFor waits until the URL answers 200.
func waitFor(t *testing.T, p *program, url string) {
	t.Helper()
	testkit.Eventually(t, url, func() bool {
		select {
		case <-p.done:
			t.Fatalf("the proxy ended: %s", p.stderr.String())
		default:
		}
		response, err := http.Get(url)
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == 200
	})
}
