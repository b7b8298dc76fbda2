package serve

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/leaseapi"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/httpstore"
)

// tokensFile writes a file of credentials.
func tokensFile(t *testing.T, lines ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "tokens")
	testkit.Must(t, os.WriteFile(name, []byte(strings.Join(lines, "\n")), 0o600))
	return name
}

func credentialLine(name, token, namespace, roles string) string {
	return fmt.Sprintf("%s %x %s %s", name, sha256.Sum256([]byte(token)), namespace, roles)
}

// TestCredentials: without one everything but /healthz and /readyz is 401, and one may do what its
// roles say, in its namespace.
func TestCredentials(t *testing.T) {
	file := tokensFile(t, "# comment", "", credentialLine("app", "secret-a", "shop", "use"),
		credentialLine("ops", "secret-o", "-", "look,act"), credentialLine("other", "secret-b", "other", "use"))
	r := start(t, inMemory(t), func(c *Config) { c.Tokens = file })
	for _, path := range []string{"/", "/version", "/metrics", "/v1/openapi.json", "/v1/keys", "/nothing"} {
		for _, token := range []string{"", "wrong", "secret-", "secret-aa"} {
			if got := r.do("GET", path, token, ""); got.status != http.StatusUnauthorized || got.header.Get("WWW-Authenticate") == "" {
				t.Errorf("GET %s with %q is %d", path, token, got.status)
			}
		}
	}
	for _, verb := range []string{"claim", "renew", "settle"} {
		if got := r.do("POST", "/v1/"+verb, "", "{}"); got.status != http.StatusUnauthorized {
			t.Errorf("POST %s is %d", verb, got.status)
		}
		if got := r.do("POST", "/v1/"+verb, "secret-o", "{}"); got.status != http.StatusForbidden {
			t.Errorf("POST %s by a credential that may look is %d", verb, got.status)
		}
	}
	for _, probe := range []string{"/healthz", "/readyz"} {
		if got := r.do("GET", probe, "", ""); got.status != http.StatusOK {
			t.Errorf("%s is %d", probe, got.status)
		}
	}
	if got := r.do("GET", "/metrics", "secret-a", ""); got.status != http.StatusForbidden {
		t.Errorf("/metrics by a credential that may not look is %d", got.status)
	}
	claim := func(token, n, namespace string) *reply {
		return r.do("POST", "/v1/claim", token, `{"claims":[{"key":"k"`+namespace+`,"token":"`+strings.Repeat(n, 32)+`"}]}`)
	}
	if got := claim("secret-a", "1", ""); got.state() != "granted" || got.Answers[0].Namespace != "shop" {
		t.Fatal(got.text)
	}
	if got := claim("secret-b", "2", "").state(); got != "granted" {
		t.Errorf("the same key of another credential's namespace is %s", got)
	}
	if got := claim("secret-a", "3", `,"namespace":"shop"`).state(); got != "held" {
		t.Errorf("the namespace by its name is %s", got)
	}
	for _, verb := range []string{"claim", "renew", "settle"} {
		body := `{"` + verb + `s":[{"key":"k","namespace":"other","token":"` + strings.Repeat("1", 32) + `"}]}`
		body = strings.NewReplacer("renews", "renewals", "settles", "settlements").Replace(body)
		if got := r.do("POST", "/v1/"+verb, "secret-a", body); got.status != http.StatusForbidden || !strings.Contains(got.Detail, `"shop"`) {
			t.Errorf("%s in another namespace is %d %s", verb, got.status, got.text)
		}
	}

	// A file that is wrong changes nothing, and one that is right counts at once.
	testkit.Must(t, os.WriteFile(file, []byte("nonsense secret-x"), 0o600))
	r.server.reload()
	if got := claim("secret-a", "4", "").state(); got != "held" {
		t.Errorf("after a wrong file a claim is %s", got)
	}
	if log := r.log.String(); !strings.Contains(log, "line 1") || strings.Contains(log, "secret-x") {
		t.Errorf("the log of a wrong file is %s", log)
	}
	testkit.Must(t, os.WriteFile(file, []byte(credentialLine("app", "new", "shop", "use")), 0o600))
	r.server.reload()
	if got := claim("secret-a", "5", "").status; got != http.StatusUnauthorized {
		t.Errorf("the old token is %d", got)
	}
	if got := claim("new", "6", "").state(); got != "held" {
		t.Errorf("the new token is %s", got)
	}
	if strings.Contains(r.log.String(), "secret-") {
		t.Error("a token is in the log")
	}
}

// TestWithoutTokensOnlyThisHost: a page that leads a browser to this host under another name
// gets nothing, and neither does a page of another origin.
func TestWithoutTokensOnlyThisHost(t *testing.T) {
	r := start(t, inMemory(t), nil)
	body := `{"claims":[{"key":"k","mode":"look"}]}`
	for host, want := range map[string]int{"evil.example": 403, "evil.example:80": 403, "localhost": 200, "LOCALHOST:1": 200, "127.0.0.1": 200, "127.9.9.9:7": 200, "[::1]:7": 200, "127.0.0.1.evil.example": 403, "": 200} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", r.URL+"/v1/claim", strings.NewReader(body))
		testkit.Must(t, err)
		req.Header.Set("Content-Type", "application/json")
		req.Host = host
		if got := r.send(req); got.status != want {
			t.Errorf("with Host %q it is %d; want %d", host, got.status, want)
		}
	}
	for name, value := range map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", r.URL+"/v1/claim", strings.NewReader(body))
		testkit.Must(t, err)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set(name, value)
		if got := r.send(req); got.status != http.StatusForbidden {
			t.Errorf("with %s: %s it is %d", name, value, got.status)
		}
	}
	for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded"} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", r.URL+"/v1/claim", strings.NewReader(body))
		testkit.Must(t, err)
		req.Header.Set("Content-Type", kind)
		if got := r.send(req); got.status != http.StatusUnsupportedMediaType {
			t.Errorf("a body of %q is %d", kind, got.status)
		}
	}
}

// TestEverywhereElseNeedsCredentials: the server refuses to listen where others reach it.
func TestEverywhereElseNeedsCredentials(t *testing.T) {
	without, file := start(t, inMemory(t), nil), tokensFile(t, credentialLine("a", "a", "-", "use"))
	with := start(t, inMemory(t), func(c *Config) { c.Tokens = file })
	for addr, ok := range map[net.Addr]bool{
		&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}: true, &net.TCPAddr{IP: net.IPv6loopback}: true, &net.UnixAddr{Name: "/s", Net: "unix"}: true,
		&net.TCPAddr{IP: net.IPv4zero}: false, &net.TCPAddr{IP: net.IPv6zero}: false, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}: false,
	} {
		if err := without.server.CheckListener(addr); (err == nil) != ok {
			t.Errorf("%s: %v", addr, err)
		}
		if err := with.server.CheckListener(addr); err != nil {
			t.Errorf("%s with tokens: %v", addr, err)
		}
	}
}

// TestDescriptionHasThePaths: the OpenAPI document has the paths that there are, with their
// methods.
func TestDescriptionHasThePaths(t *testing.T) {
	r := start(t, inMemory(t), nil)
	var d struct {
		Paths map[string]map[string]any
	}
	testkit.Must(t, json.Unmarshal(leaseapi.Description, &d))
	for path, methods := range d.Paths {
		for _, method := range []string{"GET", "POST", "PUT", "DELETE"} {
			_, described := methods[strings.ToLower(method)]
			got := r.do(method, path, "", "{}")
			if there := got.status != http.StatusMethodNotAllowed && !strings.HasSuffix(got.Type, "#not-found"); there != described {
				t.Errorf("%s %s is %d; it is described: %v", method, path, got.status, described)
			}
			if !described && got.header.Get("Allow") == "" {
				t.Errorf("%s %s does not say which method it has", method, path)
			}
		}
	}
	for _, p := range append(r.server.shell.Paths(), r.server.paths()...) {
		if _, ok := d.Paths[p.Path]; !ok {
			t.Errorf("%s is not in the document", p.Path)
		}
	}
}

// TestBounds: what is too much is refused, and what was taken for it is given back.
func TestBounds(t *testing.T) {
	r := start(t, inMemory(t), func(c *Config) {
		c.MaxBody, c.MaxBodyMemory, c.MaxWaiters = 100_000, 800_000, 2
	})
	long := strings.Repeat(" ", 100_001)
	post := func(body io.Reader, length int64) *reply {
		req, err := http.NewRequestWithContext(t.Context(), "POST", r.URL+"/v1/claim", body)
		testkit.Must(t, err)
		req.ContentLength = length
		req.Header.Set("Content-Type", "application/json")
		return r.send(req)
	}
	if got := post(strings.NewReader(long), int64(len(long))); got.status != http.StatusRequestEntityTooLarge {
		t.Errorf("a long body is %d", got.status)
	}
	if got := post(io.MultiReader(strings.NewReader(long)), -1); got.status != http.StatusRequestEntityTooLarge {
		t.Errorf("a long body of unknown length is %d", got.status)
	}
	least := `{"claims":[{"key":"k","mode":"look"}]}`
	if got := post(io.MultiReader(strings.NewReader(least)), -1); got.state() != "free" {
		t.Errorf("a short body of unknown length is %s", got.state())
	}
	req, err := http.NewRequestWithContext(t.Context(), "POST", r.URL+"/v1/claim", strings.NewReader(least))
	testkit.Must(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Content-Encoding", "gzip")
	if got := r.send(req); got.status != http.StatusUnsupportedMediaType {
		t.Errorf("a compressed body is %d", got.status)
	}

	// What has arrived of bodies that do not end takes the memory of others, and what they declare
	// does not.
	var held []net.Conn
	for range 2 {
		conn, err := net.Dial("tcp", r.Listener.Addr().String())
		testkit.Must(t, err)
		held = append(held, conn)
		fmt.Fprintf(conn, "POST /v1/claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n%s", strings.Repeat(" ", 55_000))
	}
	r.memoryIs(2 * 55_000 * bodyMemory)
	if got := post(strings.NewReader(strings.Repeat(" ", 30_000)), 30_000); got.status != http.StatusTooManyRequests || got.header.Get("Retry-After") == "" {
		t.Errorf("a body for which there is no memory is %d", got.status)
	}
	if got := post(strings.NewReader(least), int64(len(least))); got.state() != "free" {
		t.Errorf("a short body beside them is %s", got.state())
	}
	for _, conn := range held {
		conn.Close()
	}
	r.memoryIs(0)

	r.claim(1, "}]")
	var waiting sync.WaitGroup
	for n := 2; n < 4; n++ {
		waiting.Go(func() { r.claim(n, queued) })
	}
	r.waits(2)
	if got := r.claim(4, queued); got.status != http.StatusTooManyRequests {
		t.Errorf("one more waiter is %d", got.status)
	}
	if got := r.server.load.calls.Load(); got != 0 {
		t.Errorf("%d calls are counted while all wait", got)
	}
	r.server.shell.Stop()
	waiting.Wait()
}

// TestCallsHaveABound: a credential cannot take all calls of the server.
func TestCallsHaveABound(t *testing.T) {
	file := tokensFile(t, credentialLine("a", "a", "-", "use"), credentialLine("b", "b", "-", "use,look"))
	r := start(t, inMemory(t), func(c *Config) { c.Tokens, c.MaxCalls = file, 3 })
	open := func(token string) {
		conn, err := net.Dial("tcp", r.Listener.Addr().String())
		testkit.Must(t, err)
		t.Cleanup(func() { conn.Close() })
		fmt.Fprintf(conn, "POST /v1/claim HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 60\r\n\r\n{", token)
	}
	least := `{"claims":[{"key":"k","mode":"look"}]}`
	open("a")
	open("a")
	testkit.Eventually(t, "two calls are under way", func() bool { return r.server.load.calls.Load() == 2 })
	if got := r.do("POST", "/v1/claim", "a", least); got.status != http.StatusTooManyRequests || !strings.Contains(got.Detail, " 2 calls under way, half of the server's --max-calls") {
		t.Errorf("a third call of one credential is %d %s", got.status, got.Detail)
	}
	if got := r.do("POST", "/v1/claim", "b", least); got.state() != "free" {
		t.Errorf("a call of the other credential is %s", got.state())
	}
	open("b")
	testkit.Eventually(t, "three calls are under way", func() bool { return r.server.load.calls.Load() == 3 })
	if got := r.do("POST", "/v1/claim", "b", least); got.status != http.StatusTooManyRequests || !strings.Contains(got.Detail, " 3 calls under way, its --max-calls.") {
		t.Errorf("a fourth call is %d %s", got.status, got.Detail)
	}
	if got := r.do("GET", "/v1/keys", "b", ""); got.status != http.StatusTooManyRequests || !strings.Contains(got.Detail, " 3 calls under way, its --max-calls.") {
		t.Errorf("a list is %d %s", got.status, got.Detail)
	}
}

// TestARefusalReachesAClientThatStillSends: the client reads it although its body continues.
func TestARefusalReachesAClientThatStillSends(t *testing.T) {
	r := start(t, inMemory(t), nil)
	conn, err := net.Dial("tcp", r.Listener.Addr().String())
	testkit.Must(t, err)
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 104857600\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	testkit.Must(t, err)
	defer resp.Body.Close()
	conn.Close() // the body's end comes when the client has stopped sending
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("it is %d", resp.StatusCode)
	}
}

// TestAnswersHaveALength: an answer is not in chunks, which every client would have to put together.
func TestAnswersHaveALength(t *testing.T) {
	r := start(t, inMemory(t), nil)
	got := r.claim(1, "}]")
	if length := got.header.Get("Content-Length"); length != strconv.Itoa(len(got.text)) {
		t.Errorf("an answer of %d bytes has the length %q", len(got.text), length)
	}
}

// TestKeysBelongToTheirNamespace: a credential lists and changes the keys of its namespace, and
// only one that may act sees what lets it act.
func TestKeysBelongToTheirNamespace(t *testing.T) {
	s := inMemory(t)
	file := tokensFile(t, credentialLine("app", "a", "shop", "use"), credentialLine("eye", "e", "shop", "look"),
		credentialLine("hand", "h", "shop", "look,act"), credentialLine("far", "f", "-", "look,act"))
	r := start(t, s, func(c *Config) { c.Tokens = file })
	token := func(n int) string { return fmt.Sprintf("%032x", n) }
	r.do("POST", "/v1/claim", "a", `{"claims":[{"key":"k","token":"`+token(1)+`"},{"key":"k","mode":"reserve","token":"`+token(2)+`"},{"key":"r","token":"`+token(3)+`"}]}`)
	r.do("POST", "/v1/settle", "a", `{"settlements":[{"key":"r","token":"`+token(3)+`","outcome":"keep","data":"c2VjcmV0"}]}`)
	for who, want := range map[string]struct{ keys, secrets int }{"e": {2, 0}, "h": {2, 2}, "f": {0, 0}} {
		got := r.do("GET", "/v1/keys?places=true&data=true", who, "")
		if got.status != http.StatusOK {
			t.Fatalf("%s: %d %s", who, got.status, got.text)
		}
		secrets := strings.Count(got.text, `"token":"`+token(2)+`"`) + strings.Count(got.text, `"data":"c2VjcmV0"`)
		if keys := strings.Count(got.text, "\n"); keys != want.keys || secrets != want.secrets {
			t.Errorf("%s sees %d keys and %d secrets; want %+v: %s", who, keys, secrets, want, got.text)
		}
		if strings.Contains(got.text, token(1)) {
			t.Errorf("%s sees the token of a holder", who)
		}
	}
	for path, status := range map[string]int{
		"?namespace=shop": 200, "?namespace=": 403, "?namespace=other": 403, "?nonsense=1": 400, "?state=held": 200, "?state=lost": 400,
		"?key=k": 200, "?key=": 400, "?places=maybe": 400, "?key=a&key=b": 400,
	} {
		if got := r.do("GET", "/v1/keys"+path, "e", ""); got.status != status {
			t.Errorf("%s is %d %s; want %d", path, got.status, got.text, status)
		}
	}
	if got := r.do("GET", "/v1/keys?namespace=", "e", ""); !strings.Contains(got.text, `--namespace \"shop\"`) {
		t.Errorf("a list of another namespace does not name the cure: %s", got.text)
	}
	for _, order := range []string{"release", "forget", "resolve"} {
		for who, status := range map[string]int{"a": 403, "e": 403, "h": 200, "f": 200} {
			if got := r.do("POST", "/v1/keys/"+order, who, `{"key":"nothing"}`); got.status != status {
				t.Errorf("%s by %s is %d %s; want %d", order, who, got.status, got.text, status)
			}
		}
		if got := r.do("POST", "/v1/keys/"+order, "h", `{"key":"k","token":"`+token(1)+`"}`); got.status != http.StatusBadRequest {
			t.Errorf("%s with a token is %d", order, got.status)
		}
	}
	if got := r.do("POST", "/v1/keys/release", "f", `{"key":"k"}`); got.text != `{"done":0}` {
		t.Errorf("another namespace's key is released: %s", got.text)
	}
	if got := r.do("POST", "/v1/keys/release", "h", `{"key":"k"}`); got.text != `{"done":1}` {
		t.Errorf("the key is not released: %s", got.text)
	}
	if log := r.log.String(); !strings.Contains(log, "a key was changed by hand") || !strings.Contains(log, "credential=hand") || strings.Contains(log, token(1)) {
		t.Errorf("the log is %s", log)
	}

	over, err := httpstore.Open("http://:e@"+r.Listener.Addr().String(), nil)
	testkit.Must(t, err)
	defer over.Close()
	for _, err := range over.List(t.Context(), store.Query{}) {
		testkit.Check(t, err)
	}
	if _, err := over.Forget(t.Context(), dibs.Key{Namespace: "shop", Name: "r"}, ""); err == nil || !strings.Contains(err.Error(), "does not have the role act") {
		t.Errorf("a credential that may look forgets: %v", err)
	}
}
