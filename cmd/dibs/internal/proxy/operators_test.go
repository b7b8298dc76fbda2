package proxy

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/page"
)

// TestPageOfTheProxy: it is at the admin address and not at the proxy's own. With a file of tokens it
// needs one of them, and a reload reads the file again.
func TestPageOfTheProxy(t *testing.T) {
	o := newBareOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\norigin")
	file := filepath.Join(t.TempDir(), "tokens")
	tokens := func(token string) {
		testkit.Must(t, os.WriteFile(file, fmt.Appendf(nil, "ops %x - look", sha256.Sum256([]byte(token))), 0o600))
	}
	tokens("first")
	status := func(p *running, url, token, user string) int {
		t.Helper()
		req := testkit.Request(t.Context(), t, "GET", url+"/page/search?q=k", nil)
		req.AddCookie(&http.Cookie{Name: page.CookieName, Value: token})
		if user != "" {
			req.Header.Set("X-User", user)
		}
		res, err := http.DefaultClient.Do(req)
		testkit.Must(t, err)
		res.Body.Close()
		return res.StatusCode
	}
	open := start(t, o.url, "")
	if got := status(open, open.admin, "", ""); got != 200 {
		t.Errorf("on this host without a file it is %d", got)
	}
	p := start(t, o.url, "", "--admin", "127.0.0.1:0", "--admin-tokens", file, "--admin-user-header", "X-User")
	for _, test := range []struct {
		token, user string
		want        int
	}{{"", "", 401}, {"wrong", "", 401}, {"first", "", 200}, {"", "ada", 200}} {
		if got := status(p, p.admin, test.token, test.user); got != test.want {
			t.Errorf("with %q and the user %q it is %d; want %d", test.token, test.user, got, test.want)
		}
	}
	tokens("second")
	testkit.Must(t, p.server.reload())
	if a, b := status(p, p.admin, "first", ""), status(p, p.admin, "second", ""); a != 401 || b != 200 {
		t.Errorf("after a reload the old token is %d and the new one %d", a, b)
	}
}

// TestPageSettings: what has no effect, and what is no header, is refused.
func TestPageSettings(t *testing.T) {
	for _, flags := range [][]string{
		{"--admin-tokens", "file"}, {"--admin-user-header", "X-User"}, {"--admin", ":9090", "--admin-user-act"}, {"--admin", ":9090", "--admin-user-header", "a b"},
	} {
		if _, err := load(t, "", append(flags, "--upstream", "http://127.0.0.1:1")...); err == nil {
			t.Errorf("%q is accepted", flags)
		}
	}
}
