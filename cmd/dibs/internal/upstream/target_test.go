//go:build unix

package upstream

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

var targets = []struct{ sent, seen string }{
	{"/", "/"},
	{"/charges", "/charges"},
	{"/a%2Fb", "/a%2Fb"},
	{"/a%2fb/%7e", "/a%2fb/%7e"},
	{"/a;b=c/../d/./e", "/a;b=c/../d/./e"},
	{"//a//b", "//a//b"},
	{"//a!b;c*(d)'[e]", "//a!b;c*(d)'[e]"},
	{"//a%7Cb%2f", "//a%7Cb%2f"},
	{"/a\"b|c<d>^`{}\\", "/a\"b|c<d>^`{}\\"},
	{"/a?", "/a?"},
	{"/a?x=1;y=2&&z", "/a?x=1;y=2&&z"},
	{"/a??b=|\"", "/a??b=|\""},
	{"//example.com?a", "//example.com?a"},
	{"/%00%ff", "/%00%ff"},
	{"/(a)!*'", "/(a)!*'"},
	{"/[a]", "/[a]"},
	{"http://example.com", "/"},
	{"http://example.com?a", "/?a"},
	{"http://example.com//a%7cb", "//a%7cb"},
}

// TestTarget: the origin gets path and query byte for byte, over HTTP/1 and
// HTTP/2, with and without TLS.
func TestTarget(t *testing.T) {
	rude := newRude(t, []turn{
		say(ok), say(ok), say(ok), say(ok), say(ok), say(ok), say(ok), say(ok), say(ok), say(ok),
		say(ok), say(ok), say(ok), say(ok), say(ok), say(ok), say(ok), say(ok), say(ok), say(ok),
	})
	plain := newTransport(t, rude.url, nil)
	for i, target := range targets {
		send(t, plain, "POST", target.sent)
		testkit.Eventually(t, "the requests arrive", func() bool { return len(rude.requests()) >= i+1 })
		if seen := rude.requests(); len(seen) != i+1 {
			t.Fatalf("%s: the origin saw %d requests; want %d", target.sent, len(seen), i+1)
		} else if line, _, _ := strings.Cut(seen[i], "\r\n"); line != "POST "+target.seen+" HTTP/1.1" {
			t.Errorf("HTTP/1: %s was seen as %q", target.sent, line)
		}
	}
	var got string
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { got = r.RequestURI })
	for _, scheme := range []string{"https", "h2c"} {
		tr := startHTTP2(t, httptest.NewUnstartedServer(handler), scheme)
		for _, target := range targets {
			send(t, tr, "POST", target.sent)
			if got != target.seen {
				t.Errorf("%s: %s was seen as %q", scheme, target.sent, got)
			}
		}
	}
	http1 := httptest.NewTLSServer(handler)
	defer http1.Close()
	tls := http1.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	tls.ServerName = "example.com"
	tr := newTransport(t, http1.URL, &Options{TLS: tls})
	for _, target := range targets {
		send(t, tr, "GET", target.sent)
		send(t, tr, "POST", target.sent)
		if got != target.seen {
			t.Errorf("HTTP/1 over TLS: %s was seen as %q", target.sent, got)
		}
	}
}

// TestTargetRefused: CheckTarget refuses the targets that net/http cannot send unchanged.
func TestTargetRefused(t *testing.T) {
	for _, target := range []string{"//a|b", "//a\"b", "http://example.com//a|b", "//a/{id}?x"} {
		if err := CheckTarget(&http.Request{RequestURI: target}); err != ErrTarget {
			t.Errorf("%s: %v", target, err)
		}
	}
	for _, target := range targets {
		if err := CheckTarget(&http.Request{RequestURI: target.sent}); err != nil {
			t.Errorf("%s: %v", target.sent, err)
		}
	}
}

// send sends a request with the target, as a server would have read it.
func send(t *testing.T, tr *Transport, method, target string) {
	t.Helper()
	in, err := http.ReadRequest(bufio.NewReader(strings.NewReader(method + " " + target + " HTTP/1.1\r\nHost: example.com\r\n\r\n")))
	if err != nil {
		t.Fatalf("%s: %v", target, err)
	}
	out := in.Clone(t.Context())
	out.RequestURI, out.Body = "", nil
	tr.Direct(out, in)
	if _, _, err := roundTrip(tr, out); err != nil {
		t.Fatalf("%s: %v", target, err)
	}
}

// TestPrefix: the origin's URL can have a path.
func TestPrefix(t *testing.T) {
	var got string
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.RequestURI + " " + r.Host
	}))
	defer origin.Close()
	send(t, newTransport(t, origin.URL+"/api/", nil), "POST", "//v1/x%2F?a")
	if want := "/api//v1/x%2F?a example.com"; got != want {
		t.Errorf("the origin saw %q; want %q", got, want)
	}
}

// TestNew: the error says what is wrong with the URL.
func TestNew(t *testing.T) {
	for origin, want := range map[string]string{
		"127.0.0.1:3000":     "did you mean http://127.0.0.1:3000?",
		"u:secret@x:3000":    "unknown scheme",
		"127.0.0.1":          "unknown scheme",
		"unix:app.sock":      "must be absolute, as in unix:/run/app.sock",
		"localhost:3000":     "did you mean http://localhost:3000?",
		"ftp://x":            "an unknown scheme",
		"http://":            "names no host, as in http://127.0.0.1:3000",
		"http://u:secret@x/": "can have only a host, a port and a path",
		"http://x/?a=b":      "can have only a host, a port and a path",
		"":                   "an unknown scheme",
	} {
		_, err := New(origin, nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", origin, err)
		}
	}
}
