//go:build nightly

package browser

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/page"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// scope begins the keys of HTTP requests here.
const scope = "http:GQ0p0hV7Hq3b8QkHn1oSLg:"

// rig is a page in a browser.
type rig struct {
	*httptest.Server
	*tab
	store *memstore.Store
	page  *page.Handler
	log   testkit.Output
}

// start opens a page in a browser with a window of that size. With a token it needs a credential.
func start(t *testing.T, width, height int64, token string) *rig {
	t.Helper()
	under, err := memstore.New(nil)
	testkit.Must(t, err)
	r := &rig{store: under}
	o := &page.Options{Logger: slog.New(slog.NewTextHandler(&r.log, nil)), Traffic: new(page.Traffic), StoreName: "memory:", ShowBodies: true}
	if token != "" {
		o.SignIn = func(given string) string {
			if given == token {
				return "session"
			}
			return ""
		}
		o.Viewer = func(r *http.Request) *page.Viewer {
			if page.Session(r) == "session" {
				return &page.Viewer{Name: "Ada", Act: true}
			}
			return nil
		}
	}
	r.page = page.New(under, o)
	r.Server = httptest.NewServer(r.page)
	t.Cleanup(func() {
		r.page.Close()
		r.Close()
		under.Close()
	})
	r.tab = newTab(t, width, height, 1)
	r.run(chromedp.Navigate(r.URL + "/"))
	return r
}

// claim makes claims, with what is left out.
func (r *rig) claim(claims ...store.Claim) {
	r.t.Helper()
	for i := range claims {
		c := &claims[i]
		if c.Token.IsZero() {
			c.Token = store.NewToken()
		}
		if c.TTL == 0 {
			c.TTL, c.PlaceTTL = time.Hour, time.Hour
		}
		c.Permits, c.Weight = 1, 1
		if c.Owner.Host == "" {
			c.Owner = store.Owner{Host: "worker-1.internal", PID: 4711, Label: "nightly report"}
		}
	}
	testkit.Must(r.t, r.store.Claim(r.t.Context(), claims, make([]store.Answer, len(claims))))
}

// unknown makes the outcome of a key unknown.
func (r *rig) unknown(name string) {
	r.t.Helper()
	r.claim(store.Claim{Key: store.Key{Name: name}, TTL: time.Millisecond, AtMostOnce: true})
	testkit.Eventually(r.t, "the outcome is unknown", func() bool { return r.condition(name) == store.ConditionUnknown })
}

// condition returns what the store says of a key.
func (r *rig) condition(name string) store.Condition {
	none := ""
	for e, err := range r.store.List(r.t.Context(), store.Query{Namespace: &none, Name: name}) {
		testkit.Must(r.t, err)
		return e.Condition
	}
	return "free"
}

// press presses keys.
func press(keys ...string) chromedp.Action {
	all := chromedp.Tasks{}
	for _, k := range keys {
		all = append(all, chromedp.KeyEvent(k))
	}
	return all
}
