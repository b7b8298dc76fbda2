package proxy

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
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

// ringText returns the text of a ring with keys of n bytes.
func ringText(n int, ids ...string) string {
	var lines []string
	for _, id := range ids {
		lines = append(lines, id+":"+base64.StdEncoding.EncodeToString([]byte(strings.Repeat(id[:1], n))))
	}
	return strings.Join(lines, "\n") + "\n"
}

// ringFile returns a file with the text.
func ringFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ring")
	testkit.Must(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// encryptsWith returns the ID of the key that a policy encrypts answers with; "" if it does not.
func encryptsWith(p *Policy) string {
	id, _ := idempotency.EncryptedWith(p.options().KeyRing.Encrypt(dibs.Key{Name: "k"}, dibs.Fingerprint{}, 0, nil))
	return id
}

// TestKeyRing: the ring comes from a file or a variable. A route inherits it or has its own.
func TestKeyRing(t *testing.T) {
	t.Setenv("DIBS_TEST_RING", ringText(32, "variable", "old"))
	c, err := load(t, "upstream: http://x\nkey-ring: env:DIBS_TEST_RING\nroutes:\n  - path: /a\n  - path: /b\n    key-ring: "+ringFile(t, ringText(32, "file"))+"\n  - path: /c\n    key-ring: ''\n")
	testkit.Must(t, err)
	got := []string{encryptsWith(&c.Policy)}
	for i := range c.Routes {
		got = append(got, encryptsWith(&c.Routes[i].Policy))
	}
	if want := "variable variable file "; strings.Join(got, " ") != want {
		t.Errorf("encrypted with %q; want %q", got, want)
	}
	if c, err = load(t, "", "--upstream=http://x", "--key-ring=env:DIBS_TEST_RING"); err != nil || encryptsWith(&c.Policy) != "variable" {
		t.Errorf("by a flag: %v", err)
	}
	if c, err = load(t, "", "--upstream=http://x"); err != nil || encryptsWith(&c.Policy) != "" {
		t.Errorf("without a ring: %v", err)
	}
}

// TestBadKeyRing: the proxy does not start with a ring that is wrong.
func TestBadKeyRing(t *testing.T) {
	for _, test := range []struct{ source, want string }{
		{filepath.Join(t.TempDir(), "missing"), "openssl rand -base64 32"},
		{"env:DIBS_TEST_NO_RING", `no variable "DIBS_TEST_NO_RING"`},
		{ringFile(t, ""), "has no key"},
		{ringFile(t, ringText(16, "short")), `"short" has 16 bytes; it must have 32`},
		{ringFile(t, ringText(32, "a", "a")), `two keys with the ID "a"`},
	} {
		for name, load := range map[string]func() error{
			"flag": func() error { _, err := load(t, "", "--upstream=http://x", "--key-ring="+test.source); return err },
			"file": func() error { _, err := load(t, "upstream: http://x\nkey-ring: "+test.source+"\n"); return err },
		} {
			if err := load(); err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "key-ring") {
				t.Errorf("%s: %v; want key-ring and %s", name, err, test.want)
			}
		}
	}
}

// post posts a message and returns the answer, whose body is not read yet.
func post(t *testing.T, url, message string) *http.Response {
	t.Helper()
	r := testkit.Request(t.Context(), t, http.MethodPost, url, strings.NewReader(message))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	res, err := http.DefaultClient.Do(r)
	testkit.Must(t, err)
	t.Cleanup(func() { res.Body.Close() })
	return res
}

// TestMCPFailure: an origin that cannot be reached is an error of JSON-RPC with the request's id,
// guarded or not.
func TestMCPFailure(t *testing.T) {
	l := testkit.Listen(t)
	l.Close()
	p := start(t, "http://"+l.Addr().String(), "", "--for=mcp", "--scope=none")
	for i, message := range []string{
		`{"jsonrpc":"2.0","id":"a","method":"tools/list"}`,
		fmt.Sprintf(`{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"a","_meta":{%q:"k"}}}`, idempotency.MCPKey),
	} {
		res := post(t, p.url, message)
		var m struct {
			ID    string
			Error struct {
				Code int
				Data struct{ Type string }
			}
		}
		testkit.Must(t, json.NewDecoder(res.Body).Decode(&m))
		if res.StatusCode != 502 || m.ID != "a" || m.Error.Code != 502 || !strings.HasSuffix(m.Error.Data.Type, "#origin-unreachable") {
			t.Errorf("%d: answered %d %+v", i, res.StatusCode, m)
		}
	}
}
