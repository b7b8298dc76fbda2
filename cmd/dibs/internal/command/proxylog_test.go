//go:build unix

package command_test

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
)

// TestProxyLog: what the process of the proxy writes to stderr is lines of JSON.
func TestProxyLog(t *testing.T) {
	b := newBench(t)
	origin := httptest.NewServer(http.NotFoundHandler())
	defer origin.Close()
	p := b.start(t, "proxy", "--listen", "127.0.0.1:0", "--upstream", origin.URL, "--log-format", "json", "--log-level", "debug")
	eventually(t, "the proxy listens", func() bool { return strings.Contains(p.stdout.String(), "\n") })
	_, rest, _ := strings.Cut(p.stdout.String(), "listening on ")
	url, _, _ := strings.Cut(rest, ",")
	response, err := http.Post(url, "text/plain", strings.NewReader("a"))
	must(t, err)
	must(t, response.Body.Close())
	p.signal(t, syscall.SIGTERM)
	if code := p.code(t); code != 0 {
		t.Errorf("the proxy ends with %d", code)
	}
	requests := 0
	for line := range strings.Lines(p.stderr.String()) {
		var fields struct{ Msg string }
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Errorf("%q: %v", line, err)
		}
		if fields.Msg == "request" {
			requests++
		}
	}
	if requests != 1 {
		t.Errorf("%d lines of requests; want 1: %s", requests, p.stderr.String())
	}
}

// TestProxyStartFails: a proxy that cannot start says so in text, whatever the format of its log.
func TestProxyStartFails(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	code, _, stderr := newBench(t).run(t, "proxy", "--listen", l.Addr().String(), "--upstream", "http://x", "--log-format", "json")
	var last string
	for line := range strings.Lines(stderr) {
		last = line
	}
	if code != 1 || !strings.HasPrefix(last, "dibs proxy: listen: ") {
		t.Errorf("%d %q; want 1 and a text", code, stderr)
	}
}
