//go:build unix

package command_test

import (
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestPageAndMetricsOfAProcessAgree: dibs serve and dibs proxy look at the store once for both. So a page
// that nobody had open when a wait began knows when it began, because somebody read the metrics.
func TestPageAndMetricsOfAProcessAgree(t *testing.T) {
	for name, args := range map[string][]string{
		"serve": {"serve", "--listen", "127.0.0.1:0"},
		"proxy": {"proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "--admin", "127.0.0.1:0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			s := b.inspector(t)
			p := b.start(t, args...)
			testkit.Eventually(t, "the address", func() bool { return strings.Contains(p.stdout.String(), "\n") })
			urls := regexp.MustCompile(`http://[0-9.:]+`).FindAllString(p.stdout.String(), -1)
			if len(urls) == 0 {
				t.Fatalf("it says %q", p.stdout.String())
			}
			get := func(path string) string {
				resp, err := http.Get(urls[len(urls)-1] + path)
				testkit.Must(t, err)
				defer resp.Body.Close()
				text, err := io.ReadAll(resp.Body)
				testkit.Must(t, err)
				return string(text)
			}
			testkit.Eventually(t, "the metrics of the store", func() bool { return strings.Contains(get("/metrics"), "\ndibs_waiters{") })
			for range 2 {
				c := store.Claim{Key: store.Key{Name: "k"}, Token: store.NewToken(), Mode: store.Queue, TTL: time.Hour, PlaceTTL: time.Hour, Permits: 1, Weight: 1}
				testkit.Must(t, s.Claim(t.Context(), []store.Claim{c}, make([]store.Answer, 1)))
			}
			var shown struct {
				Waited struct {
					MS    int64
					Least bool
				}
			}
			testkit.Eventually(t, "the wait on the page", func() bool {
				testkit.Must(t, json.Unmarshal([]byte(get("/page/key?ns=&key=aw")), &shown))
				return shown.Waited.MS > 0
			})
			if shown.Waited.Least {
				t.Error("the page does not know when the wait began")
			}
		})
	}
}
