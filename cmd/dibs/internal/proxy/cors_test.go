package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestPagesInBrowsers: a page that the origin allows can send keys and read the proxy's
// refusals. Other pages cannot.
func TestPagesInBrowsers(t *testing.T) {
	const shop, other = "https://shop.example", "https://other.example"
	up := origin(t, func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		if r.URL.Path == "/public" {
			h.Set("Access-Control-Allow-Origin", "*")
			return
		}
		if r.Header.Get("Origin") != shop {
			return
		}
		h.Set("Access-Control-Allow-Origin", shop)
		h.Set("Access-Control-Allow-Credentials", "true")
		if r.Method == "OPTIONS" {
			if strings.Contains(r.Header.Get("Access-Control-Request-Headers"), "idempotency") {
				w.WriteHeader(403) // as strict libraries do
				return
			}
			h.Set("Access-Control-Allow-Headers", "content-type")
			return
		}
		h.Set("Access-Control-Expose-Headers", "X-A")
		if r.URL.Path == "/broken" {
			h.Set("Content-Length", "10")
			fmt.Fprint(w, "half")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		fmt.Fprint(w, "done")
	})
	askAt := func(p *running, method, path, page, fields string) http.Header {
		t.Helper()
		res, _ := send(t, p.url, method+" "+path+" HTTP/1.1\r\nHost: a\r\nOrigin: "+page+"\r\n"+fields+"Content-Length: 0\r\n\r\n")
		return res.Header
	}
	ask := func(p *running, method, page, fields string) http.Header {
		t.Helper()
		return askAt(p, method, "/", page, fields)
	}
	expect := func(name string, h http.Header, allow, headers, expose string) {
		t.Helper()
		for field, want := range map[string]string{
			"Access-Control-Allow-Origin": allow, "Access-Control-Allow-Headers": headers, "Access-Control-Expose-Headers": expose,
		} {
			if got := h.Get(field); got != want {
				t.Errorf("%s: %s is %q, want %q", name, field, got, want)
			}
		}
	}
	const preflight = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: content-type,idempotency-key\r\n"
	const ours = "Idempotent-Replayed, Retry-After"

	off := start(t, up, "")
	expect("switched off", ask(off, "OPTIONS", shop, preflight), shop, "", "")

	p := start(t, up, "", "--cors", shop, "--require-key")
	expect("a preflight", ask(p, "OPTIONS", shop, preflight), shop, "content-type, idempotency-key", "")
	expect("another page's preflight", ask(p, "OPTIONS", other, preflight), "", "", "")
	expect("an answer", ask(p, "POST", shop, "Idempotency-Key: k\r\n"), shop, "", "X-A, "+ours)
	expect("its replay", ask(p, "POST", shop, "Idempotency-Key: k\r\n"), shop, "", "X-A, "+ours)
	expect("a replay for another page", ask(p, "POST", other, "Idempotency-Key: k\r\n"), shop, "", "X-A")
	expect("a refusal", ask(p, "POST", shop, ""), shop, "", ours)
	if h := ask(p, "POST", shop, ""); h.Get("Access-Control-Allow-Credentials") != "true" || !strings.Contains(h.Get("Vary"), "Origin") {
		t.Errorf("a refusal has %v", h)
	}
	expect("another page's refusal", ask(p, "POST", other, ""), "", "", "")
	expect("another page's answer", ask(p, "POST", other, "Idempotency-Key: l\r\n"), "", "", "")
	expect("its replay", ask(p, "POST", other, "Idempotency-Key: l\r\n"), "", "", "")

	expect("a refusal after half an answer", askAt(p, "POST", "/broken", shop, "Idempotency-Key: broken\r\n"), shop, "", ours)
	expect("what every page may read", askAt(p, "POST", "/public", other, "Idempotency-Key: m\r\n"), "*", "", ours)
	expect("a replay for a page that may read something else", ask(p, "POST", other, "Idempotency-Key: k\r\n"), shop, "", "X-A")

	others := start(t, up, "", "--cors="+other)
	expect("an answer", ask(others, "POST", shop, "Idempotency-Key: k\r\n"), shop, "", "X-A, "+ours)
	expect("its replay for a page of the list that the origin does not allow", ask(others, "POST", other, "Idempotency-Key: k\r\n"), shop, "", "X-A")
}
