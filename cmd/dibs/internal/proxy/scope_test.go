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
