package proxy

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/page"
	"github.com/dibs-go/dibs/stores/memstore"
)

// TestAdmin: health and readiness are on the admin address only.
func TestAdmin(t *testing.T) {
	o := newBareOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\norigin")
	p := start(t, o.url, "")
	for url, want := range map[string]string{
		p.admin + "/healthz": "200 alive\n",
		p.admin + "/readyz":  "200 ready\n",
		p.url + "/healthz":   "200 origin",
		p.url + "/readyz":    "200 origin",
		p.admin + "/nothing": "404 there is nothing at this path\n",
	} {
		res, err := http.Get(url)
		testkit.Must(t, err)
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if got := fmt.Sprintf("%d %s", res.StatusCode, body); got != want {
			t.Errorf("%s: %q; want %q", url, got, want)
		}
	}
}

// TestUnguardedIsMeasured: unguarded requests are measured, even if the answer is cut off.
func TestUnguardedIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []idempotency.Event
		s := &Server{admin: &Admin{Observe: func(_ context.Context, e idempotency.Event) { events = append(events, e) }}}
		h := s.unguarded(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			time.Sleep(time.Second)
			panic(http.ErrAbortHandler)
		}))
		func() {
			defer func() { _ = recover() }()
			r := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
			h.ServeHTTP(newExchange(httptest.NewRecorder(), r), r)
		}()
		if len(events) != 1 || events[0].Kind != idempotency.EventUnguarded || events[0].Handler != time.Second {
			t.Errorf("%+v; want one event of 1 s", events)
		}
	})
}

// TestRoutes: the first route that matches serves the request.
func TestRoutes(t *testing.T) {
	o := newBareOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst")
	other := newBareOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecond")
	p := start(t, o.url, `
routes:
  - {path: /pay/**, methods: [POST], require-key: true}
  - {path: /pay/free, methods: [PUT], guard: false}
  - {host: other.example.com, upstream: "`+other.url+`"}
`)
	tests := []struct{ request, want string }{
		{"POST /pay/a HTTP/1.1\r\nHost: a\r\n", "400"},
		{"POST /pay/%61 HTTP/1.1\r\nHost: a\r\n", "400"},
		{"POST /p%61y/a HTTP/1.1\r\nHost: a\r\n", "400"},
		{"POST /pay/a HTTP/1.1\r\nHost: a\r\nIdempotency-Key: 1\r\n", "200 first"},
		{"POST /pay/a HTTP/1.1\r\nHost: a\r\nIdempotency-Key: 1\r\n", "200 first replayed"},
		{"PATCH /pay/a HTTP/1.1\r\nHost: a\r\n", "200 first"},
		{"PUT /pay/free HTTP/1.1\r\nHost: a\r\nIdempotency-Key: 1\r\n", "200 first"},
		{"PUT /pay/free HTTP/1.1\r\nHost: a\r\nIdempotency-Key: 1\r\n", "200 first"},
		{"POST /x HTTP/1.1\r\nHost: Other.Example.com:8080\r\n", "200 second"},
		{"POST /x HTTP/1.1\r\nHost: a\r\n", "200 first"},
		{"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n", "405"},
	}
	for _, test := range tests {
		res, body := send(t, p.url, test.request+"\r\n")
		got := fmt.Sprint(res.StatusCode)
		if res.StatusCode == 200 {
			got += " " + body
		}
		if res.Header.Get("Idempotent-Replayed") != "" {
			got += " replayed"
		}
		if got != test.want {
			t.Errorf("%q: %s; want %s", test.request, got, test.want)
		}
	}
}

// TestReadyWithoutStore: while the store does not answer, a proxy is ready if it refuses no
// request because of that.
func TestReadyWithoutStore(t *testing.T) {
	const open = "on-store-failure: open\n"
	for text, want := range map[string]int{
		"":               503,
		open:             200,
		"guard: false\n": 200,
		open + "routes:\n  - {path: /a, on-store-failure: closed}\n": 503,
		open + "routes:\n  - {path: /a, guard: false}\n":             200,
	} {
		store, err := memstore.New(nil)
		testkit.Must(t, err)
		p := startOn(t, store, "http://127.0.0.1:1", text)
		testkit.Must(t, store.Close())
		res, err := http.Get(p.admin + "/readyz")
		testkit.Must(t, err)
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%q: %d; want %d", text, res.StatusCode, want)
		}
	}
}

// ask makes a request to the admin address with headers, which are pairs. A Host is that of the request.
func (r *running) ask(t *testing.T, method, path, body string, header ...string) *http.Response {
	t.Helper()
	req := testkit.Request(t.Context(), t, method, r.admin+path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	for pair := range slices.Chunk(header, 2) {
		req.Header[pair[0]] = append(req.Header[pair[0]], pair[1])
		if pair[0] == "Host" {
			req.Host = pair[1]
		}
	}
	res, err := http.DefaultClient.Do(req)
	testkit.Must(t, err)
	res.Body.Close()
	return res
}

// tokensFile returns a file of credentials, and what writes it: pairs of a token and its roles.
func tokensFile(t *testing.T, pairs ...string) (file string, write func(pairs ...string)) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "tokens")
	write = func(pairs ...string) {
		var text []byte
		for pair := range slices.Chunk(pairs, 2) {
			text = fmt.Appendf(text, "%s %x - %s\n", pair[0], sha256.Sum256([]byte(pair[0])), pair[1])
		}
		testkit.Must(t, os.WriteFile(file, text, 0o600))
	}
	write(pairs...)
	return file, write
}

// TestPageOfTheProxy: it is at the admin address and not at the proxy's own. With a file of tokens it
// needs one of them, and a reload reads the file again. The cookie of the page is not the token.
func TestPageOfTheProxy(t *testing.T) {
	o := newBareOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\norigin")
	file, write := tokensFile(t, "first", "look")
	const search = "/page/search?q=k"
	open := start(t, o.url, "")
	if got := open.ask(t, "GET", search, "").StatusCode; got != 200 {
		t.Errorf("on this host without a file it is %d", got)
	}
	p := start(t, o.url, "", "--admin", "127.0.0.1:0", "--admin-tokens", file, "--admin-user-header", "X-User")
	signIn := func(token string) (status int, cookie string) {
		res := p.ask(t, "POST", "/page/sign-in", `{"token":"`+token+`"}`)
		for _, c := range res.Cookies() {
			return res.StatusCode, c.Name + "=" + c.Value
		}
		return res.StatusCode, ""
	}
	_, cookie := signIn("first")
	for _, test := range []struct {
		header []string
		want   int
	}{
		{nil, 401}, {[]string{"Cookie", page.CookieName + "=wrong"}, 401}, {[]string{"Cookie", page.CookieName + "=first"}, 401}, {[]string{"Cookie", cookie}, 200},
		{[]string{"X-User", "ada"}, 200}, {[]string{"X-User", ""}, 401}, {[]string{"X-User", "ada", "X-User", "ada"}, 401},
	} {
		if got := p.ask(t, "GET", search, "", test.header...).StatusCode; got != test.want {
			t.Errorf("with %q it is %d; want %d", test.header, got, test.want)
		}
	}
	write("second", "look")
	testkit.Must(t, p.server.reload())
	if a, _ := signIn("first"); a != 401 {
		t.Errorf("after a reload signing in with the old token is %d", a)
	}
	if b, _ := signIn("second"); b != 204 {
		t.Errorf("after a reload signing in with the new token is %d", b)
	}
	if got := p.ask(t, "GET", search, "", "Cookie", cookie).StatusCode; got != 401 {
		t.Errorf("after a reload the cookie of the old token is %d", got)
	}
}

// TestReachedByAnotherName: without a credential, nobody reloads the proxy or reads its metrics by a name
// that can be another site's (DNS rebinding), and nobody reloads it through another proxy. Checks of
// health may have any name.
func TestReachedByAnotherName(t *testing.T) {
	o := newBareOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\norigin")
	file, _ := tokensFile(t, "actor", "act,look")
	paths := [][2]string{{"POST", "/reload"}, {"GET", "/metrics"}, {"GET", "/version"}, {"GET", "/nothing"}}
	allowed := func(status int) bool { return status == 200 || status == 404 }
	for _, flags := range [][]string{nil, {"--admin", "127.0.0.1:0", "--admin-tokens", file}} {
		p := start(t, o.url, "", flags...)
		for _, at := range paths {
			for _, host := range []string{"127.0.0.1:9090", "[::1]:9090", "localhost", "10.1.2.3:9090", "[fd00::1]", "proxy:9090", "proxy.pay.svc:9090", "proxy.pay.svc.cluster.local.", "dibs.internal"} {
				if got := p.ask(t, at[0], at[1], "", "Host", host).StatusCode; !allowed(got) {
					t.Errorf("%q: %s as %s is %d", flags, at, host, got)
				}
			}
			for _, header := range [][]string{
				{"Host", "evil.example:9090"}, {"Host", "evil.example."}, {"Host", "localhost.evil.example"}, {"Host", "127.0.0.1.evil.example"}, {"Host", "svc.example"}, {"Host", "."},
				{"X-Forwarded-For", "10.0.0.1"}, {"X-Forwarded-User", "ada"}, {"Forwarded", "for=10.0.0.1"}, {"X-Real-Ip", "10.0.0.1"}, {"Via", "1.1 gateway"},
			} {
				want := 403
				if flags != nil {
					want = 401
				}
				if at[0] == "GET" && header[0] != "Host" {
					want = 404 // there are no metrics
					if at[1] == "/version" {
						want = 200
					}
				}
				if got := p.ask(t, at[0], at[1], "", header...).StatusCode; got != want {
					t.Errorf("%q: %s with %q is %d; want %d", flags, at, header, got, want)
				}
				if flags != nil {
					if got := p.ask(t, at[0], at[1], "", append([]string{"Authorization", "Bearer actor"}, header...)...).StatusCode; !allowed(got) {
						t.Errorf("%s with %q and a token is %d", at, header, got)
					}
				}
				if got := p.ask(t, "GET", "/readyz", "", header...).StatusCode; got != 200 {
					t.Errorf("readiness with %q is %d", header, got)
				}
				if got := p.ask(t, "GET", "/page/search?q=k", "", header...).StatusCode; got != 401 {
					t.Errorf("the page with %q is %d", header, got)
				}
			}
		}
	}
}

// TestRolesAtTheAdminAddress: where there is a single sign-on, every path needs one user of it, or a token.
// The roles of both count on every path.
func TestRolesAtTheAdminAddress(t *testing.T) {
	o := newBareOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\norigin")
	file, _ := tokensFile(t, "looker", "look", "actor", "look,act", "app", "use")
	user, act := []string{"--admin", "127.0.0.1:0", "--admin-user-header", "X-User"}, "--admin-user-act"
	for _, test := range []struct {
		flags            []string
		header           []string
		reload, metrics  int // 404: there are none
		search, released int
	}{
		{user, nil, 401, 401, 401, 401},
		{user, []string{"X-User", ""}, 401, 401, 401, 401},
		{user, []string{"X-User", "ada", "X-User", "bob"}, 401, 401, 401, 401},
		{user, []string{"X-User", strings.Repeat("x", 257)}, 401, 401, 401, 401},
		{user, []string{"X-User", "ada"}, 403, 404, 200, 403},
		{append(user, act), []string{"X-User", "ada"}, 200, 404, 200, 200},
		{append(user, "--admin-tokens", file), []string{"Authorization", "Bearer actor"}, 200, 404, 200, 200},
		{append(user, "--admin-tokens", file), []string{"Authorization", "Bearer looker"}, 403, 404, 200, 403},
		{append(user, "--admin-tokens", file), []string{"Authorization", "Bearer app"}, 403, 403, 401, 401},
		{append(user, "--admin-tokens", file), []string{"Authorization", "Bearer "}, 401, 401, 401, 401},
	} {
		p := start(t, o.url, "", test.flags...)
		for at, want := range map[[2]string]int{
			{"POST", "/reload"}: test.reload, {"GET", "/metrics"}: test.metrics, {"GET", "/page/search?q=k"}: test.search, {"POST", "/page/release"}: test.released,
		} {
			if got := p.ask(t, at[0], at[1], `{"link":"ns=&key=aw","id":"aaaaaaaaaaaaaaaa"}`, test.header...).StatusCode; got != want {
				t.Errorf("%q: %s with %.40q is %d; want %d", test.flags, at, test.header, got, want)
			}
		}
	}
}
