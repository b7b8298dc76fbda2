package serve

import (
	"net/http"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/page"
)

// get asks for a path with headers, which are pairs.
func (r *rig) get(path string, header ...string) *reply {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.URL+path, nil)
	testkit.Must(r.t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	return r.send(req)
}

// TestPageCredentials: the page takes the cookie of a token with the role look, and users of the single
// sign-on. The API takes neither, because a browser sends them by itself.
func TestPageCredentials(t *testing.T) {
	r := start(t, inMemory(t), func(c *Config) {
		c.AccessLog = true
		c.SingleSignOn = page.SingleSignOn{Header: "X-Forwarded-User"}
		c.Tokens = tokensFile(t, credentialLine("app", "secret-a", "shop", "use"), credentialLine("ops", "secret-o", "shop", "look"), credentialLine("chief", "secret-c", "shop", "look,act"))
	})
	const search = "/page/search?q=anything"
	cookie := func(token string) []string { return []string{"Cookie", page.CookieName + "=" + token} }
	for _, test := range []struct {
		header []string
		page   int
	}{
		{nil, 401}, {cookie("secret-a"), 401}, {cookie("wrong"), 401}, {cookie("secret-o"), 200}, {cookie("secret-c"), 200},
		{[]string{"Authorization", "Bearer secret-o"}, 200}, {[]string{"X-Forwarded-User", "ada"}, 200},
		{[]string{"X-Forwarded-User", "ada", "X-Forwarded-User", "bob"}, 401},
	} {
		for _, path := range []string{"/", search} {
			if got := r.get(path, test.header...); got.status != test.page {
				t.Errorf("%s with %q is %d; want %d", path, test.header, got.status, test.page)
			}
		}
		if test.header == nil || test.header[0] != "Authorization" {
			for _, path := range []string{"/v1/keys", "/metrics"} {
				if got := r.get(path, test.header...); got.status != 401 {
					t.Errorf("%s with %q is %d", path, test.header, got.status)
				}
			}
		}
	}
	act := func(token string, header ...string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.URL+"/page/release", strings.NewReader(`{"link":"ns=c2hvcA&key=aw","id":"aaaaaaaaaaaaaaaa"}`))
		testkit.Must(t, err)
		req.Header.Set("Content-Type", "application/json")
		if token != "" {
			req.AddCookie(&http.Cookie{Name: page.CookieName, Value: token})
		}
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		return r.send(req).status
	}
	if a, b, c := act("secret-o"), act("", "X-Forwarded-User", "ada"), act("secret-c"); a != 403 || b != 403 || c != 200 {
		t.Errorf("acting with look is %d, by the single sign-on's user %d, and with act %d", a, b, c)
	}
	if got := act("secret-c", "Sec-Fetch-Site", "cross-site"); got != 403 {
		t.Errorf("another site's action is %d", got)
	}
	if got := r.do("POST", "/page/sign-in", "", `{"token":"secret-o"}`); got.status != 204 || !strings.Contains(got.header.Get("Set-Cookie"), "HttpOnly; SameSite=Strict") {
		t.Errorf("signing in is %d %s", got.status, got.header)
	}
	if got := r.do("POST", "/page/sign-in", "", `{"token":"secret-a"}`); got.status != 401 {
		t.Errorf("signing in without the role look is %d", got.status)
	}
	log := r.log.String()
	if strings.Contains(log, "secret-") || !strings.Contains(log, "viewer=chief") || !strings.Contains(log, "credential=ada") {
		t.Errorf("the log is %s", log)
	}
}

// TestPageWithoutTokens: on loopback the page needs no credential, but it needs a name of this host.
func TestPageWithoutTokens(t *testing.T) {
	r := start(t, inMemory(t), nil)
	if got := r.get("/"); got.status != 200 || !strings.HasPrefix(got.text, "<!doctype html>") {
		t.Errorf("the page is %d", got.status)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.URL+"/page/search?q=k", nil)
	testkit.Must(t, err)
	req.Host = "evil.example"
	if got := r.send(req); got.status != 401 {
		t.Errorf("under another name it is %d", got.status)
	}
}

// TestPageCountsClaims: the numbers of the page are those of the claims.
func TestPageCountsClaims(t *testing.T) {
	r := start(t, inMemory(t), nil)
	r.server.count(&Call{Verb: "claim", Outcomes: map[string]int{"granted": 2, "done": 3, "held": 4}})
	r.server.count(&Call{Verb: "settle", Outcomes: map[string]int{"done": 5}})
	resp, err := r.Client().Get(r.URL + "/page/events")
	testkit.Must(t, err)
	defer resp.Body.Close()
	text := make([]byte, 8192)
	n, err := resp.Body.Read(text)
	testkit.Must(t, err)
	for _, want := range []string{`,9],[0,`, `,3],[0,`, `,4],[0,`} {
		if !strings.Contains(string(text[:n]), want) {
			t.Errorf("the news have no %s: %s", want, text[:n])
		}
	}
}
