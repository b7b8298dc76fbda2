//go:build unix

package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// TestSettledOnThePage: retries get the answer that a person has entered on the page, whatever key ring
// the proxy has: it is stored as the middleware stores answers.
func TestSettledOnThePage(t *testing.T) {
	one, other := ringFile(t, ringText(32, "one")), ringFile(t, ringText(32, "other"))
	routes := func(first, second string) string {
		return fmt.Sprintf("routes:\n  - path: /first\n    key-ring: %s\n  - path: /second\n    key-ring: %s\n", first, second)
	}
	for name, test := range map[string]struct {
		text   string
		flags  []string
		status int // of the call of the page
	}{
		"no ring":           {"", nil, 200},
		"a ring":            {"", []string{"--key-ring", one}, 200},
		"a ring and routes": {routes(one, one), []string{"--key-ring", one}, 200},
		"plaintext":         {"", []string{"--key-ring", ringFile(t, "plaintext\n"+ringText(32, "one"))}, 200},
		"several rings":     {routes(one, other), []string{"--key-ring", one}, 422},
	} {
		t.Run(name, func(t *testing.T) {
			under, err := memstore.New(nil)
			testkit.Must(t, err)
			breaks := origin(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
			p := startOn(t, under, breaks, test.text, append([]string{"--on-crash", "at-most-once"}, test.flags...)...)
			p.sendKey(t, "k")
			if res, text := p.sendKey(t, "k"); res.StatusCode != 409 || problemType(t, text) != "outcome-unknown" {
				t.Fatalf("the retry is %d %s", res.StatusCode, text)
			}
			var found store.Entry
			for e, err := range under.List(t.Context(), store.Query{}) {
				testkit.Must(t, err)
				found = e
			}
			_, listed := get(t, p.admin+"/page/search?q="+url.QueryEscape(found.Key.Name))
			_, link, _ := strings.Cut(listed, `"link":"`)
			link, _, _ = strings.Cut(link, `"`)
			body := fmt.Sprintf(`{"link":"%s","id":"%s","status":201,"type":"text/plain","body":"by hand"}`, link, found.Runs[0].ID)
			res, err := http.Post(p.admin+"/page/resolve", "application/json", strings.NewReader(body))
			testkit.Must(t, err)
			text, err := io.ReadAll(res.Body)
			res.Body.Close()
			testkit.Must(t, err)
			if res.StatusCode != test.status {
				t.Fatalf("settling is %d %s", res.StatusCode, text)
			}
			retry, got := p.sendKey(t, "k")
			if test.status == 200 {
				if retry.StatusCode != 201 || got != "by hand" {
					t.Errorf("the retry is %d %s", retry.StatusCode, got)
				}
			} else if !strings.Contains(string(text), "dibs resolve --key-ring") || problemType(t, got) != "outcome-unknown" {
				t.Errorf("settling says %s, and the retry is %d %s", text, retry.StatusCode, got)
			}
		})
	}
}

func get(t *testing.T, url string) (*http.Response, string) {
	t.Helper()
	res, err := http.Get(url)
	testkit.Must(t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	testkit.Must(t, err)
	return res, string(text)
}
