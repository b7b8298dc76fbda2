package page

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// rig is a page under test. Its tokens are "looker", "actor" and, of the namespace shop, "shop".
type rig struct {
	*httptest.Server
	t     *testing.T
	store *memstore.Store
	page  *Handler
	log   testkit.Output
}

func start(t *testing.T, open bool) *rig {
	t.Helper()
	under, err := memstore.New(nil)
	testkit.Must(t, err)
	r := &rig{t: t, store: under}
	o := &Options{Logger: slog.New(slog.NewTextHandler(&r.log, nil)), Traffic: new(Traffic), StoreName: "memory:"}
	if !open {
		shop := "shop"
		viewers := map[string]*Viewer{"looker": {Name: "Lou"}, "actor": {Name: "Ada", Act: true}, "shop": {Name: "Sam", Act: true, Namespace: &shop}}
		o.SignIn = func(token string) string {
			if viewers[token] == nil {
				return ""
			}
			return "session-" + token
		}
		o.Viewer = func(r *http.Request) *Viewer {
			token, _ := strings.CutPrefix(Session(r), "session-")
			return viewers[token]
		}
	}
	r.page = New(under, o)
	r.Server = httptest.NewServer(r.page)
	t.Cleanup(func() {
		r.page.Close()
		r.Close()
		under.Close()
	})
	return r
}

// do makes a request with a token and headers, which are pairs.
func (r *rig) do(method, path, token, body string, header ...string) (*http.Response, string) {
	r.t.Helper()
	req := testkit.Request(r.t.Context(), r.t, method, r.URL+path, strings.NewReader(body))
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.AddCookie(&http.Cookie{Name: CookieName, Value: "session-" + token})
	}
	for pair := range slices.Chunk(header, 2) {
		req.Header.Set(pair[0], pair[1])
		if pair[0] == "Host" {
			req.Host = pair[1]
		}
	}
	resp, err := r.Client().Do(req)
	testkit.Must(r.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	testkit.Must(r.t, err)
	return resp, string(text)
}

// claim claims keys, with a token each.
func (r *rig) claim(claims ...store.Claim) {
	r.t.Helper()
	for i := range claims {
		c := &claims[i]
		if c.Token.IsZero() {
			c.Token = store.NewToken()
		}
		if c.TTL == 0 {
			c.TTL = time.Hour
		}
		c.Permits, c.Weight = 1, 1
		c.Owner = store.Owner{Host: "worker-1", PID: 7, Label: "<b>nightly</b>"}
	}
	answers := make([]store.Answer, len(claims))
	testkit.Must(r.t, r.store.Claim(r.t.Context(), claims, answers))
}

// unknown makes an outcome unknown and returns the ID of the attempt.
func (r *rig) unknown(key store.Key) string {
	r.t.Helper()
	token := store.NewToken()
	r.claim(store.Claim{Key: key, Token: token, TTL: time.Millisecond, AtMostOnce: true})
	testkit.Eventually(r.t, "the outcome is unknown", func() bool { return r.look(key).Condition == store.ConditionUnknown })
	return token.ID()
}

// look returns what the store knows of a key.
func (r *rig) look(key store.Key) store.Entry {
	r.t.Helper()
	for e, err := range r.store.List(r.t.Context(), store.Query{Namespace: &key.Namespace, Name: key.Name, Data: true}) {
		testkit.Must(r.t, err)
		return e
	}
	return store.Entry{Condition: "free"}
}

// shownNews are news and their lists.
type shownNews struct {
	news
	lists
}

// first returns the first news of a stream.
func (r *rig) first(token string) *shownNews {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	req := testkit.Request(ctx, r.t, "GET", r.URL+"/page/events", nil)
	req.AddCookie(&http.Cookie{Name: CookieName, Value: "session-" + token})
	resp, err := r.Client().Do(req)
	testkit.Must(r.t, err)
	defer resp.Body.Close()
	if got := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || got != "text/event-stream" {
		r.t.Fatalf("the stream is %d %s", resp.StatusCode, got)
	}
	text, err := bufio.NewReader(resp.Body).ReadString('\n')
	testkit.Must(r.t, err)
	n := new(shownNews)
	testkit.Must(r.t, json.Unmarshal([]byte(strings.TrimPrefix(text, "data: ")), &n.news))
	if n.news.Lists != nil {
		testkit.Must(r.t, json.Unmarshal(n.news.Lists, &n.lists))
	}
	return n
}

// TestFile: the page is one file of at most 60 KB that asks nobody else, and its policy allows its
// own style and script and nothing else.
func TestFile(t *testing.T) {
	r := start(t, true)
	resp, text := r.do("GET", "/", "", "")
	if resp.StatusCode != 200 || len(text) > 60_000 || !bytes.Equal([]byte(text), source) {
		t.Errorf("the page is %d with %d bytes", resp.StatusCode, len(text))
	}
	csp := resp.Header.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "script-src 'sha256-", "style-src 'sha256-", "frame-ancestors 'none'", "base-uri 'none'"} {
		if !strings.Contains(csp, want) {
			t.Errorf("the policy %q has no %s", csp, want)
		}
	}
	if strings.Contains(csp, "unsafe") || strings.Contains(csp, "http") || strings.Contains(csp, "*") {
		t.Errorf("the policy allows too much: %s", csp)
	}
	for _, bad := range []string{" style=", " onclick=", "innerHTML", "insertAdjacentHTML", "document.write", "eval(", "https://", "localStorage"} {
		if strings.Contains(text, bad) {
			t.Errorf("the page has %s", bad)
		}
	}
	if strings.Count(text, "<script>") != 1 || strings.Count(text, "<style>") != 1 {
		t.Error("the policy has a hash for one script and one style")
	}
}

// TestNames: the page says which store it is of, and the namespace if it shows only one.
func TestNames(t *testing.T) {
	r := start(t, false)
	if n := r.first("looker"); n.Store != "memory:" || n.Namespace != nil {
		t.Errorf("the page is of %q, namespace %v", n.Store, n.Namespace)
	}
	if n := r.first("shop"); n.Namespace == nil || *n.Namespace != "shop" {
		t.Errorf("the namespace is %v; want shop", n.Namespace)
	}
}

// TestCredentials: without a credential everything is 401. One that may look cannot act.
func TestCredentials(t *testing.T) {
	r := start(t, false)
	key := store.Key{Name: "k"}
	r.claim(store.Claim{Key: key})
	order := `{"link":"` + linkOf(key) + `"}`
	for _, token := range []string{"", "wrong", "looke", "lookers"} {
		for _, path := range []string{"/", "/page/events", "/page/search?q=k", "/page/key?" + linkOf(key)} {
			if resp, text := r.do("GET", path, token, ""); resp.StatusCode != 401 || resp.Header.Get("WWW-Authenticate") == "" || strings.Contains(text, "worker-1") {
				t.Errorf("GET %s with %q is %d", path, token, resp.StatusCode)
			}
		}
		for _, verb := range []string{"release", "forget", "resolve"} {
			if resp, _ := r.do("POST", "/page/"+verb, token, order); resp.StatusCode != 401 {
				t.Errorf("%s with %q is %d", verb, token, resp.StatusCode)
			}
		}
		if resp, _ := r.do("POST", "/page/sign-in", "", `{"token":"`+token+`"}`); resp.StatusCode != 401 || resp.Header.Get("Set-Cookie") != "" {
			t.Errorf("signing in with %q is %d", token, resp.StatusCode)
		}
	}
	for _, verb := range []string{"release", "forget", "resolve"} {
		if resp, _ := r.do("POST", "/page/"+verb, "looker", order); resp.StatusCode != 403 {
			t.Errorf("%s by a viewer who may look is %d", verb, resp.StatusCode)
		}
	}
	if e := r.look(key); e.Condition != store.ConditionHeld {
		t.Errorf("the key is %s", e.Condition)
	}
	if n := r.first("looker"); n.Act || n.Viewer != "Lou" || !n.SignedIn {
		t.Errorf("the looker's news are %+v", n)
	}
	resp, _ := r.do("POST", "/page/sign-in", "", `{"token":" actor "}`)
	if resp.StatusCode != 204 {
		t.Fatalf("signing in is %d", resp.StatusCode)
	}
	c := resp.Cookies()[0]
	if c.Name != CookieName || c.Value != "session-actor" || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.MaxAge != 0 || !c.Expires.IsZero() {
		t.Errorf("the cookie is %v", c)
	}
	resp, _ = r.do("POST", "/page/sign-out", "actor", "{}")
	if c := resp.Cookies()[0]; c.MaxAge >= 0 || c.Value != "" {
		t.Errorf("signing out sets %v", c)
	}
	for _, secret := range []string{"actor", "looker", "wrong"} {
		if strings.Contains(r.log.String(), secret) {
			t.Errorf("the token %s is in the log", secret)
		}
	}
}

// TestOverHTTPS: the cookie is never sent without TLS again, no other host can have set it, and the one
// of plain HTTP does not count.
func TestOverHTTPS(t *testing.T) {
	r := start(t, false)
	secure := httptest.NewTLSServer(r.page)
	defer secure.Close()
	resp, err := secure.Client().Post(secure.URL+"/page/sign-in", "application/json", strings.NewReader(`{"token":"actor"}`))
	testkit.Must(t, err)
	resp.Body.Close()
	c := resp.Cookies()[0]
	if !c.Secure || c.Name != "__Host-"+CookieName || c.Path != "/" || c.Domain != "" {
		t.Errorf("the cookie is %v", c)
	}
	for name, want := range map[string]int{c.Name: 200, CookieName: 401} {
		req := testkit.Request(t.Context(), t, "GET", secure.URL+"/", nil)
		req.AddCookie(&http.Cookie{Name: name, Value: c.Value})
		resp, err := secure.Client().Do(req)
		testkit.Must(t, err)
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("with the cookie %s the page is %d", name, resp.StatusCode)
		}
	}
}

// TestThisHost: without credentials a request from this host to another name is 401, because a
// web page could make a browser send it (DNS rebinding). So is one from another host, and one that a proxy here passed on.
func TestThisHost(t *testing.T) {
	r := start(t, true)
	for _, host := range []string{"localhost:1", "127.0.0.1", "[::1]:80"} {
		if resp, _ := r.do("GET", "/", "", "", "Host", host); resp.StatusCode != 200 {
			t.Errorf("the host %s is %d", host, resp.StatusCode)
		}
	}
	for _, host := range []string{"evil.example", "localhost.evil.example", "192.0.2.1"} {
		if resp, _ := r.do("GET", "/page/search?q=k", "", "", "Host", host); resp.StatusCode != 401 {
			t.Errorf("the host %s is %d", host, resp.StatusCode)
		}
	}
	for _, field := range []string{"X-Forwarded-For", "x-forwarded-port", "X_Forwarded_Host", "Forwarded", "X-Real-IP", "Via"} {
		for _, value := range []string{"127.0.0.1", ""} {
			if resp, _ := r.do("GET", "/page/search?q=k", "", "", field, value); resp.StatusCode != 401 {
				t.Errorf("a request that a proxy passed on, which says %s: %q, is %d", field, value, resp.StatusCode)
			}
		}
	}
	far := httptest.NewRequest("GET", "http://localhost/page/search?q=k", nil)
	far.RemoteAddr = "192.0.2.7:1234"
	w := httptest.NewRecorder()
	r.page.ServeHTTP(w, far)
	if w.Code != 401 {
		t.Errorf("a request from another host is %d", w.Code)
	}
}

// TestSingleSignOn: a gateway's user is the one of one header, and acts only if its users may.
func TestSingleSignOn(t *testing.T) {
	for _, of := range []struct {
		header []string
		want   string
	}{
		{nil, ""}, {[]string{""}, ""}, {[]string{"ada"}, "ada"}, {[]string{"ada", "bob"}, ""}, {[]string{strings.Repeat("x", 257)}, ""},
	} {
		req := httptest.NewRequest("GET", "/", nil)
		req.Header["X-User"] = of.header
		for _, act := range []bool{false, true} {
			v := SingleSignOn{Header: "x-user", Act: act}.Viewer(req)
			if (v == nil) != (of.want == "") || v != nil && (v.Name != of.want || v.Act != act) {
				t.Errorf("%q is %+v", of.header, v)
			}
		}
		if v := (SingleSignOn{}).Viewer(req); v != nil {
			t.Errorf("without a gateway %q is %+v", of.header, v)
		}
	}
}

// TestCrossOrigin: another site can neither act nor sign in, even on a page that is open to
// this host. A form cannot either.
func TestCrossOrigin(t *testing.T) {
	r := start(t, true)
	key := store.Key{Name: "k"}
	r.claim(store.Claim{Key: key})
	body := `{"link":"` + linkOf(key) + `","id":"` + r.look(key).Runs[0].ID + `"}`
	for _, header := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}, {"Origin", "null"}} {
		for _, path := range []string{"release", "forget", "resolve", "sign-in", "sign-out"} {
			if resp, _ := r.do("POST", "/page/"+path, "", body, header...); resp.StatusCode != 403 {
				t.Errorf("%s with %v is %d", path, header, resp.StatusCode)
			}
		}
	}
	for _, site := range []string{"cross-site", "same-site", "same-origin", "none", ""} {
		for path, want := range map[string]int{"/": 200, "/page/search?q=k": 200, "/page/search?q=k&all=true": 200, "/page/key?" + linkOf(key): 200} {
			if path != "/" && strings.HasSuffix(site, "-site") {
				want = 403 // even a GET, because a search costs the store
			}
			if resp, _ := r.do("GET", path, "", "", "Sec-Fetch-Site", site); resp.StatusCode != want {
				t.Errorf("GET %s from %q is %d; want %d", path, site, resp.StatusCode, want)
			}
		}
	}
	req := testkit.Request(t.Context(), t, "GET", r.URL+"/page/events", nil)
	req.Header.Set("Sec-Fetch-Site", "cross-site")
	resp, err := r.Client().Do(req)
	testkit.Must(t, err)
	resp.Body.Close() // it has no end if it is open
	if resp.StatusCode != 403 {
		t.Errorf("the stream is open to another site: %d", resp.StatusCode)
	}
	for _, origin := range []string{"https://evil.example", "null"} { // a browser that does not say Sec-Fetch-Site
		if resp, _ := r.do("GET", "/page/search?q=k&all=true", "", "", "Origin", origin); resp.StatusCode != 403 {
			t.Errorf("a search from %s is %d", origin, resp.StatusCode)
		}
	}
	for _, media := range []string{"text/plain", "application/x-www-form-urlencoded", ""} {
		if resp, _ := r.do("POST", "/page/release", "", body, "Content-Type", media); resp.StatusCode != 415 {
			t.Errorf("a body of %q is %d", media, resp.StatusCode)
		}
	}
	for _, body := range []string{"", "[]", "{", `{"nonsense":1}`, body + body} {
		if resp, _ := r.do("POST", "/page/release", "", body); resp.StatusCode != 400 {
			t.Errorf("the body %q is %d", body, resp.StatusCode)
		}
	}
	if e := r.look(key); e.Condition != store.ConditionHeld {
		t.Errorf("the key is %s", e.Condition)
	}
	if resp, _ := r.do("POST", "/page/release", "", body, "Sec-Fetch-Site", "same-origin"); resp.StatusCode != 200 {
		t.Errorf("the page's own release is %d", resp.StatusCode)
	}
}

// TestNamespace: a viewer of one namespace sees and changes no key of another one.
func TestNamespace(t *testing.T) {
	r := start(t, false)
	own, other := store.Key{Namespace: "shop", Name: "own key"}, store.Key{Namespace: "bank", Name: "other key"}
	for _, k := range []store.Key{own, other} {
		r.claim(store.Claim{Key: k}, store.Claim{Key: k, Mode: store.Queue, PlaceTTL: time.Hour})
	}
	if n := r.first("shop"); n.Waiters != 1 || len(n.Waits) != 1 || n.Waits[0].Name != "own key" {
		t.Errorf("the shop's news are %+v", n)
	}
	if n := r.first("actor"); n.Waiters != 2 || len(n.Waits) != 2 {
		t.Errorf("the news of all are %+v", n)
	}
	for _, q := range []string{"key", "other key", other.Digest(), r.look(other).Runs[0].ID} {
		for _, all := range []string{"", "&all=true"} {
			if _, text := r.do("GET", "/page/search?q="+url.QueryEscape(q)+all, "shop", ""); strings.Contains(text, "other") {
				t.Errorf("a search for %q finds %s", q, text)
			}
		}
	}
	if resp, _ := r.do("GET", "/page/key?"+linkOf(other), "shop", ""); resp.StatusCode != 404 {
		t.Errorf("the other key is %d", resp.StatusCode)
	}
	if resp, _ := r.do("POST", "/page/release", "shop", `{"link":"`+linkOf(other)+`"}`); resp.StatusCode != 404 || r.look(other).Condition != store.ConditionHeld {
		t.Errorf("the release of the other key is %d", resp.StatusCode)
	}
}

// strange are keys that a page could show wrongly.
var strange = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `'quotes" and & amp;`, "line\nbreak\ttab\x00nul", "\u202eright to left\u2066",
	"\xff\xfe not text", "zero\u200bwidth", strings.Repeat("long ", 102) + "!", strings.Repeat("\xf0", 512), "emoji 🦊 ünïcode", `back\slash`, "-- ; drop", "urn:dibs:claim:x",
}

// TestStrangeKeys: a key of any bytes is shown with visible characters, found by each way to search, and has
// a page.
func TestStrangeKeys(t *testing.T) {
	r := start(t, true)
	for _, name := range strange {
		key := store.Key{Name: name}
		r.claim(store.Claim{Key: key})
		shown := escape(name)
		for _, c := range shown {
			if c < ' ' || strings.ContainsRune("\u202e\u2066\u200b\ufffd", c) {
				t.Errorf("%q is shown as %q", name, shown)
			}
		}
		for _, q := range []string{shown, strings.TrimSpace(shown[:min(len(shown), 9)]), key.Digest(), r.look(key).Runs[0].ID, "urn:dibs:claim:" + r.look(key).Runs[0].ID} {
			if keys, end := r.findAll(q); end.End != "all" || !slices.ContainsFunc(keys, func(l line) bool { return l.Link == linkOf(key) && l.Name == shown }) {
				t.Errorf("%q is not found by %q: %+v", name, q, keys)
			}
		}
		var one line
		_, text := r.do("GET", "/page/key?"+linkOf(key), "", "")
		testkit.Check(t, json.Unmarshal([]byte(text), &one))
		if one.Name != shown || one.State != "held" || one.Runs[0].Owner.Label != "<b>nightly</b>" || strings.Contains(text, "<") {
			t.Errorf("the page of %q is %s", name, text)
		}
	}
	for _, q := range []string{"", "%20", strings.Repeat("x", 3000)} {
		if resp, _ := r.do("GET", "/page/search?all=true&q="+q, "", ""); resp.StatusCode != 400 {
			t.Errorf("a search for %d bytes is %d", len(q), resp.StatusCode)
		}
	}
	for _, q := range []string{"", "ns=&key=", "ns=&key=%21", "ns=&key=" + strings.Repeat("a", 800)} {
		if resp, _ := r.do("GET", "/page/key?"+q, "", ""); resp.StatusCode != 404 {
			t.Errorf("the key %q is %d", q, resp.StatusCode)
		}
	}
}

// TestClose: it ends open streams, so that a server can shut down.
func TestClose(t *testing.T) {
	r := start(t, true)
	resp, err := r.Client().Get(r.URL + "/page/events")
	testkit.Must(t, err)
	defer resp.Body.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, resp.Body)
		ended <- err
	}()
	r.page.Close()
	testkit.Check(t, testkit.Await(t, "the end of the stream", ended))
}

// TestStoreFails: the stream says so, and a search and an action are 503.
func TestStoreFails(t *testing.T) {
	r := start(t, true)
	r.store.Close()
	for range 3 {
		if n := r.first(""); n.Error == "" {
			t.Errorf("the news are %+v", n)
		}
	}
	if lines := r.log.With("the store fails"); len(lines) != 1 {
		t.Errorf("the log of three pages is %q; want one line", lines)
	}
	k := linkOf(store.Key{Name: "k"})
	for _, path := range []string{"/page/search?q=k", "/page/key?" + k} {
		if resp, _ := r.do("GET", path, "", ""); resp.StatusCode != 503 {
			t.Errorf("%s is %d", path, resp.StatusCode)
		}
	}
	if resp, _ := r.do("POST", "/page/release", "", `{"link":"`+k+`","id":"aaaaaaaaaaaaaaaa"}`); resp.StatusCode != 503 {
		t.Errorf("a release is %d", resp.StatusCode)
	}
}
