package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dibs-go/dibs/idempotency"
)

// TestTwoTenantsNeverShareAnAnswer: two requests with the same key and body, and different
// values of what the scope looks at, both run; a retry of each gets its own answer.
func TestTwoTenantsNeverShareAnAnswer(t *testing.T) {
	for _, test := range []struct{ flags, one, two string }{
		{"", "X-Api-Key: a\r\n", "X-Api-Key: b\r\n"},
		{"", "X_API_KEY: a\r\n", "X_API_KEY: b\r\n"},
		{"", "Authorization: Bearer t\r\nPrivate-Token: a\r\n", "Authorization: Bearer t\r\nPrivate-Token: b\r\n"},
		{"--scope=authorization,header:X-Org-Id", "Authorization: Bearer t\r\nX-Org-Id: a\r\n", "Authorization: Bearer t\r\nX-Org-Id: b\r\n"},
		{"--scope=credentials,cookie:sid", "Cookie: sid=a\r\n", "Cookie: sid=b\r\n"},
	} {
		t.Run(test.flags+" "+test.one, func(t *testing.T) {
			var runs atomic.Int64
			p := start(t, origin(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, runs.Add(1)) }), "", strings.Fields(test.flags)...)
			ask := func(credentials string) string {
				_, body := send(t, p.url, "POST / HTTP/1.1\r\nHost: h\r\nIdempotency-Key: k\r\n"+credentials+"Content-Length: 0\r\n\r\n")
				return body
			}
			for range 2 {
				if one, two := ask(test.one), ask(test.two); one != "1" || two != "2" {
					t.Errorf("one was answered by run %s, two by run %s", one, two)
				}
			}
			if log := p.logs.String(); strings.Contains(log, "came without credentials") {
				t.Errorf("the log warns:\n%s", log)
			}
		})
	}
}

// TestRequestsWithoutCredentialsAreLogged: at the start the log says what the scope is, and
// once that a request came without any of it.
func TestRequestsWithoutCredentialsAreLogged(t *testing.T) {
	p := start(t, origin(t, func(http.ResponseWriter, *http.Request) {}), "scope: [authorization, header:X-Org-Id]\nroutes:\n  - path: /hooks\n    scope: none\n")
	for range 3 {
		send(t, p.url, "POST / HTTP/1.1\r\nHost: h\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n")
	}
	p.stop()
	log := p.logs.String()
	if n := strings.Count(log, "a request came without credentials"); n != 1 {
		t.Errorf("the log warns %d times of requests without credentials:\n%s", n, log)
	}
	for _, want := range []string{`requests without these credentials share keys" scope=authorization,header:X-Org-Id`, `all clients share keys" scope=none`} {
		if strings.Count(log, want) != 1 {
			t.Errorf("the log has not once %s:\n%s", want, log)
		}
	}
}

// TestACookieSessionIsLogged: with a session that is kept in its cookie, the retry that has the new
// cookie runs, and the log says once that retries will not be recognised.
func TestACookieSessionIsLogged(t *testing.T) {
	var runs atomic.Int64
	p := start(t, origin(t, func(w http.ResponseWriter, r *http.Request) {
		n := runs.Add(1)
		w.Header().Set("Set-Cookie", fmt.Sprintf("session=value-%d; Path=/", n))
		fmt.Fprint(w, n)
	}), "", "--scope=cookie:session")
	for i, cookie := range []string{"value-0", "value-1", "value-0", "value-2"} {
		_, body := send(t, p.url, "POST / HTTP/1.1\r\nHost: h\r\nIdempotency-Key: k\r\nCookie: session="+cookie+"\r\nContent-Length: 0\r\n\r\n")
		if want := []string{"1", "2", "1", "3"}[i]; body != want {
			t.Errorf("with the cookie %s the answer is that of run %s; want %s", cookie, body, want)
		}
	}
	p.stop()
	if log := p.logs.String(); strings.Count(log, "retries will not be recognised") != 1 || !strings.Contains(log, "part=cookie:session") || strings.Contains(log, "value-") {
		t.Errorf("the log is\n%s", log)
	}
}

// TestAnOrderIsNoEvent: behind --for webhook each state of an order reaches the origin, and an event
// that a header names reaches it once, even if its body differs, which the log says.
func TestAnOrderIsNoEvent(t *testing.T) {
	var runs atomic.Int64
	p := start(t, origin(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, runs.Add(1)) }), "", "--for=webhook")
	ask := func(header, body string) string {
		_, answer := send(t, p.url, fmt.Sprintf("POST /hooks HTTP/1.1\r\nHost: h\r\n%sContent-Length: %d\r\n\r\n%s", header, len(body), body))
		return answer
	}
	for i, test := range [][2]string{
		{"", `{"id":727,"status":"processing"}`},
		{"", `{"id":727,"status":"completed"}`},
		{"Content-Type: application/x-www-form-urlencoded\r\n", "id=tr_1"},
		{"Content-Type: application/x-www-form-urlencoded\r\n", "id=tr_1"},
		{"X-GitHub-Delivery: g\r\nX-GitHub-Hook-ID: 1\r\n", "a"},
		{"X-GitHub-Delivery: g\r\nX-GitHub-Hook-ID: 1\r\n", "b"},
		{"X-GitHub-Delivery: g\r\nX-GitHub-Hook-ID: 2\r\n", "a"},
	} {
		if answer, want := ask(test[0], test[1]), []string{"1", "2", "3", "4", "5", "5", "6"}[i]; answer != want {
			t.Errorf("%s%s was answered by run %s; want %s", test[0], test[1], answer, want)
		}
	}
	p.stop()
	for _, want := range []string{"it runs without a guard", "one key came with two different requests"} {
		if log := p.logs.String(); strings.Count(log, want) != 1 {
			t.Errorf("the log has not once %q:\n%s", want, log)
		}
	}
}

// TestWarningsNameFlags: a warning of the middleware names the flag that cures it, and no field in Go.
func TestWarningsNameFlags(t *testing.T) {
	p := start(t, origin(t, func(http.ResponseWriter, *http.Request) {}), "routes:\n  - path: /a\n    fingerprint: key\n  - path: /b\n    key: header:X-Id\n  - path: /mcp\n    for: mcp\n    tool-windows: chagre=10m\n")
	post(t, p.url+"/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"charge","_meta":{"`+idempotency.MCPKey+`":"k"}}}`)
	for _, request := range []string{"/a HTTP/1.1\r\nIdempotency-Key: k", "/a?other HTTP/1.1\r\nIdempotency-Key: k", "/b HTTP/1.1"} {
		send(t, p.url, "POST "+request+"\r\nHost: h\r\nContent-Length: 0\r\n\r\n")
	}
	p.stop()
	log := p.logs.String()
	for _, want := range []string{
		"the key that --key or --for looks for", "refuse such requests (--require-key)",
		"choose a key that tells them apart (--key or --for), or compare more (fingerprint)",
		`Check the tool's name (tool-windows)" tool=chagre`,
	} {
		if strings.Count(log, want) != 1 {
			t.Errorf("the log has not once %q", want)
		}
	}
	if strings.Contains(log, "Options.") || t.Failed() {
		t.Errorf("the log is\n%s", log)
	}
}
