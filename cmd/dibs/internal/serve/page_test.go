package serve

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/page"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// get asks for a path with headers, which are pairs.
func (r *rig) get(path string, header ...string) *reply {
	r.t.Helper()
	return r.ask(http.MethodGet, path, "", header...)
}

// ask is a call with headers, which are pairs. A Host is that of the call.
func (r *rig) ask(method, path, body string, header ...string) *reply {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.URL+path, strings.NewReader(body))
	testkit.Must(r.t, err)
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	for pair := range slices.Chunk(header, 2) {
		req.Header[pair[0]] = append(req.Header[pair[0]], pair[1])
		if pair[0] == "Host" {
			req.Host = pair[1]
		}
	}
	return r.send(req)
}

// signIn returns the header of the cookie for a token.
func (r *rig) signIn(token string) []string {
	r.t.Helper()
	got := r.do("POST", "/page/sign-in", "", `{"token":"`+token+`"}`)
	cookie, rest, _ := strings.Cut(got.header.Get("Set-Cookie"), ";")
	if got.status != http.StatusNoContent || !strings.HasPrefix(cookie, page.CookieName+"=") || strings.Contains(cookie, token) || !strings.Contains(rest, "HttpOnly; SameSite=Strict") {
		r.t.Fatalf("signing in with %s is %d %v", token, got.status, got.header)
	}
	return []string{"Cookie", cookie}
}

// TestPageCredentials: the page takes a token with the role look, the cookie for one, and users of the
// single sign-on. The API does not take the cookie, because a browser sends it by itself.
func TestPageCredentials(t *testing.T) {
	r := start(t, inMemory(t), func(c *Config) {
		c.AccessLog = true
		c.SingleSignOn = page.SingleSignOn{Header: "X-Forwarded-User"}
		c.Tokens = tokensFile(t, credentialLine("app", "secret-a", "shop", "use"), credentialLine("ops", "secret-o", "shop", "look"), credentialLine("chief", "secret-c", "shop", "look,act"))
	})
	raw := func(value string) []string { return []string{"Cookie", page.CookieName + "=" + value} }
	ops, chief := r.signIn("secret-o"), r.signIn("secret-c")
	digest := sha256.Sum256([]byte("secret-c"))
	const no, yes = 401, 200
	for _, test := range []struct {
		header    []string
		page, api int
	}{
		{nil, no, no}, {raw("secret-c"), no, no}, {raw(hex.EncodeToString(digest[:])), no, no}, {raw(""), no, no},
		{ops, yes, no}, {chief, yes, no}, {[]string{"Authorization", "Bearer secret-a"}, no, 403}, {[]string{"Authorization", "Bearer secret-o"}, yes, yes},
		{[]string{"Authorization", "Bearer "}, no, no}, {[]string{"Authorization", "Bearer " + strings.TrimPrefix(ops[1], page.CookieName+"=")}, no, no},
		{[]string{"X-Forwarded-User", "ada"}, yes, yes},
	} {
		for path, want := range map[string]int{"/": test.page, "/page/search?q=anything": test.page, "/v1/keys": test.api, "/metrics": test.api} {
			if got := r.get(path, test.header...); got.status != want && !(path == "/metrics" && want == yes && got.status == 404) { // there are none in this test
				t.Errorf("%s with %q is %d; want %d", path, test.header, got.status, want)
			}
		}
	}
	const release = `{"link":"ns=c2hvcA&key=aw","id":"aaaaaaaaaaaaaaaa"}`
	act := func(header ...string) int { return r.ask("POST", "/page/release", release, header...).status }
	if a, b, c := act(ops...), act("X-Forwarded-User", "ada"), act(chief...); a != 403 || b != 403 || c != 200 {
		t.Errorf("acting with look is %d, by the single sign-on's user %d, and with act %d", a, b, c)
	}
	if got := act(append([]string{"Sec-Fetch-Site", "cross-site"}, chief...)...); got != 403 {
		t.Errorf("another site's action is %d", got)
	}
	if got := r.do("POST", "/page/sign-in", "", `{"token":"secret-a"}`); got.status != 401 || got.header.Get("Set-Cookie") != "" {
		t.Errorf("signing in without the role look is %d", got.status)
	}
	log := r.log.String()
	if strings.Contains(log, "secret-") || !strings.Contains(log, "viewer=chief") || !strings.Contains(log, "credential=ada") {
		t.Errorf("the log is %s", log)
	}
}

// hold makes a lease on the key "k" and returns its ID and whether it is held.
func hold(t *testing.T, under *memstore.Store) (id string, held func() bool) {
	t.Helper()
	claim := store.Claim{Key: store.Key{Name: "k"}, Token: store.NewToken(), TTL: time.Hour, Permits: 1, Weight: 1}
	testkit.Must(t, under.Claim(t.Context(), []store.Claim{claim}, make([]store.Answer, 1)))
	return claim.Token.ID(), func() bool {
		for e, err := range under.List(t.Context(), store.Query{Name: "k"}) {
			testkit.Must(t, err)
			return e.Condition == store.ConditionHeld
		}
		return false
	}
}

// requests are requests for every path but those of health, with a body that the path reads. Those that
// act are about the attempt.
func (r *rig) requests(id string) map[[2]string]string {
	all := map[[2]string]string{{"GET", "/"}: "", {"GET", "/page/search?q=k"}: "", {"GET", "/page/key?ns=&key=aw"}: "", {"GET", "/nothing"}: ""}
	for _, p := range append(r.server.shell.Paths(), r.server.paths()...) {
		all[[2]string{p.Method, p.Path}] = `{"key":"k","id":"` + id + `"}`
	}
	for _, verb := range []string{"release", "forget", "settle"} {
		all[[2]string{"POST", "/page/" + verb}] = `{"link":"ns=&key=aw","id":"` + id + `"}`
	}
	delete(all, [2]string{"GET", "/healthz"})
	delete(all, [2]string{"GET", "/readyz"})
	return all
}

// TestSingleSignOnIsForEveryPath: where there is a single sign-on, a request without one user of it is
// nobody's, on every path, though it is of this host. The roles of a user count on every path.
func TestSingleSignOnIsForEveryPath(t *testing.T) {
	for _, act := range []bool{false, true} {
		under := inMemory(t)
		id, held := hold(t, under)
		r := start(t, under, func(c *Config) { c.SingleSignOn = page.SingleSignOn{Header: "X-User", Act: act} })
		nobody := [][]string{nil, {"X-User", ""}, {"X-User", "ada", "X-User", "bob"}, {"X-User", "", "X-User", "ada"}, {"X-User", strings.Repeat("x", 257)}, {"X-Users", "ada"}}
		for at, body := range r.requests(id) {
			for _, header := range nobody {
				if got := r.ask(at[0], at[1], body, header...); got.status != 401 {
					t.Errorf("%s with %.40q is %d", at, header, got.status)
				}
			}
			want := 200
			switch {
			case at[1] == "/v1/claim" || at[1] == "/v1/renew" || at[1] == "/v1/settle":
				want = 403
			case at[0] == "POST" && !act:
				want = 403
			case at[0] == "POST" && strings.HasSuffix(at[1], "settle"):
				continue // the order names no attempt
			case at[1] == "/nothing" || at[1] == "/metrics": // the test has none
				want = 404
			}
			if got := r.ask(at[0], at[1], body, "X-User", "ada"); got.status != want {
				t.Errorf("%s by a user who may act (%v) is %d %s; want %d", at, act, got.status, got.text, want)
			}
		}
		if held() == act {
			t.Errorf("the users may act: %v; the key is held: %v", act, held())
		}
	}
}

// TestOnlyThisHost: without tokens, a request needs no credential, but it must be of this host: it names
// this host, and no proxy here has passed it on. No page of another site may make it.
func TestOnlyThisHost(t *testing.T) {
	under := inMemory(t)
	id, held := hold(t, under)
	r := start(t, under, nil)
	if got := r.get("/"); got.status != 200 || !strings.HasPrefix(got.text, "<!doctype html>") {
		t.Errorf("the page is %d", got.status)
	}
	for at, body := range r.requests(id) {
		for _, header := range [][]string{
			{"Host", "evil.example"}, {"Host", "localhost.evil.example:7331"}, {"X-Forwarded-For", "127.0.0.1"}, {"X-Forwarded-Proto", "http"}, {"X-Forwarded-Anything", ""},
			{"Forwarded", "for=127.0.0.1"}, {"X-Real-Ip", "127.0.0.1"}, {"Via", "1.1 gateway"}, {"x-forwarded-host", "localhost"},
		} {
			if got := r.ask(at[0], at[1], body, header...); got.status != 401 && got.status != 403 {
				t.Errorf("%s with %q is %d %s", at, header, got.status, got.text)
			}
		}
		if strings.HasPrefix(at[1], "/page/") || at[1] == "/" {
			continue // the page decides this itself
		}
		for _, site := range []string{"cross-site", "same-site"} {
			if got := r.ask(at[0], at[1], body, "Sec-Fetch-Site", site); got.status != 403 {
				t.Errorf("%s of another site is %d %s", at, got.status, got.text)
			}
		}
	}
	if !held() {
		t.Error("a request that is not of this host has released the key")
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
