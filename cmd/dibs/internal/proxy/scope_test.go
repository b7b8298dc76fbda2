package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

// TestTwoTenantsNeverShareAnAnswer: two requests with the same key and body, and different
// values of what the scope looks at, both run; a retry of each gets its own answer.
func TestTwoTenantsNeverShareAnAnswer(t *testing.T) {
	for _, test := range []struct{ flags, one, two string }{
		{"", "X-Api-Key: a\r\n", "X-Api-Key: b\r\n"},
		{"", "X_API_KEY: a\r\n", "X_API_KEY: b\r\n"},
		{"", "Authorization: Bearer t\r\nPrivate-Token: a\r\n", "Authorization: Bearer t\r\nPrivate-Token: b\r\n"},
		{"--scope=authorization,header:X-Org-Id", "Authorization: Bearer t\r\nX-Org-Id: a\r\n", "Authorization: Bearer t\r\nX-Org-Id: b\r\n"},
		{"--session-cookie=sid", "Cookie: sid=a\r\n", "Cookie: sid=b\r\n"},
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
