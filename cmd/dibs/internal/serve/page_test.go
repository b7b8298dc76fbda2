package serve

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
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
	for _, verb := range []string{"release", "forget", "resolve"} {
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
			case at[0] == "POST" && strings.HasSuffix(at[1], "resolve"):
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

// TestPageCountsClaims: the numbers of the page are those of the claims. A credential of a namespace
// sees those of its namespace, and one of every namespace sees all.
func TestPageCountsClaims(t *testing.T) {
	file := tokensFile(t, credentialLine("shop", "s", "shop", "use,look"), credentialLine("bank", "b", "bank", "use,look"), credentialLine("all", "a", "*", "look"))
	r := start(t, inMemory(t), func(c *Config) { c.Tokens = file })
	claim := func(token, key string, n int, more string) {
		t.Helper()
		if got := r.do("POST", "/v1/claim", token, fmt.Sprintf(`{"claims":[{"key":%q,"token":"%032x"%s}]}`, key, n, more)); got.status != 200 {
			t.Fatalf("a claim is %d %s", got.status, got.text)
		}
	}
	for n := range 4 {
		claim("s", "k", n+1, "") // one is granted, and three are held
	}
	claim("b", "k", 1, "")
	r.do("POST", "/v1/settle", "b", `{"settlements":[{"key":"k","token":"`+fmt.Sprintf("%032x", 1)+`","outcome":"keep","data":"eA==","retention_ms":60000}]}`)
	claim("b", "k", 2, `,"max_age_ms":60000`) // a replay
	for token, want := range map[string][3]int{"s": {4, 0, 3}, "b": {2, 1, 0}, "a": {6, 1, 3}} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.URL+"/page/events", nil)
		testkit.Must(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := r.Client().Do(req)
		testkit.Must(t, err)
		line, err := bufio.NewReader(resp.Body).ReadString('\n')
		testkit.Must(t, err)
		resp.Body.Close()
		var news struct{ Traffic [][]int }
		testkit.Must(t, json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &news))
		var got [3]int
		for c := range got {
			for _, n := range news.Traffic[c] {
				got[c] += n
			}
		}
		if got != want {
			t.Errorf("%s sees the requests, replays and conflicts %v; want %v", token, got, want)
		}
	}
}
