//go:build nightly

package browser

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/memstore"
	"github.com/dibs-go/dibs/page"
	"github.com/dibs-go/dibs/store"
)

// scope begins the keys of HTTP requests here.
const scope = "http:GQ0p0hV7Hq3b8QkHn1oSLg:"

// rig is a page in a browser.
type rig struct {
	*httptest.Server
	t     *testing.T
	store *memstore.Store
	page  *page.Handler
	log   testkit.Output
	tab   context.Context

	mu       sync.Mutex
	complain []string // under mu: what the console says
}

// start opens a page in a browser with a window of that size. With a token it needs a credential.
func start(t *testing.T, width, height int64, token string) *rig {
	t.Helper()
	under, err := memstore.New(nil)
	testkit.Must(t, err)
	r := &rig{t: t, store: under}
	o := &page.Options{Logger: slog.New(slog.NewTextHandler(&r.log, nil)), Traffic: new(page.Traffic), StoreName: "memory:"}
	if token != "" {
		o.SignIn = func(given string) *page.Viewer {
			if given == token {
				return &page.Viewer{Name: "Ada", Act: true}
			}
			return nil
		}
		o.Viewer = func(r *http.Request) *page.Viewer { return o.SignIn(page.Token(r)) }
	}
	r.page = page.New(under, o)
	r.Server = httptest.NewServer(r.page)
	flags := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(servertest.Chromium(t)), chromedp.NoSandbox)
	browser, end := chromedp.NewExecAllocator(context.Background(), flags...)
	tab, closeTab := chromedp.NewContext(browser)
	r.tab = tab
	t.Cleanup(func() {
		closeTab()
		end()
		r.page.Close()
		r.Close()
		under.Close()
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.complain) > 0 {
			t.Errorf("the console says %q", r.complain)
		}
	})
	chromedp.ListenTarget(tab, func(event any) {
		text := ""
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			text = e.ExceptionDetails.Error()
		case *runtime.EventConsoleAPICalled:
			text = fmt.Sprint(e.Type)
		}
		if text != "" {
			r.mu.Lock()
			r.complain = append(r.complain, text)
			r.mu.Unlock()
		}
	})
	testkit.Must(t, chromedp.Run(tab)) // starts the browser, which ends with that context
	r.run(emulation.SetDeviceMetricsOverride(width, height, 1, width < 800), chromedp.Navigate(r.URL+"/"))
	return r
}

// run runs actions.
func (r *rig) run(actions ...chromedp.Action) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.tab, time.Minute)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		r.shot("failed")
		r.t.Fatal(err)
	}
}

// sees waits until an element has a text.
func (r *rig) sees(selector, text string) {
	r.t.Helper()
	r.holds(fmt.Sprintf(`(document.querySelector(%q)?.checkVisibility() ? document.querySelector(%q).innerText : '').includes(%q)`, selector, selector, text))
}

// holds waits until an expression is true in the page.
func (r *rig) holds(expression string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.tab, time.Minute)
	defer cancel()
	if err := chromedp.Run(ctx, chromedp.Poll(expression, nil, chromedp.WithPollingInterval(50*time.Millisecond), chromedp.WithPollingTimeout(50*time.Second))); err != nil {
		r.shot("failed")
		var text string
		_ = chromedp.Run(r.tab, chromedp.Evaluate("document.body.innerText", &text))
		r.t.Fatalf("it does not hold that %s: %v\n%s", expression, err, text)
	}
}

// is reports whether an expression is true now.
func (r *rig) is(expression string) (holds bool) {
	r.t.Helper()
	r.run(chromedp.Evaluate(expression, &holds))
	return holds
}

// shot writes a picture to the folder DIBS_SHOTS, if that is set.
func (r *rig) shot(name string) {
	r.t.Helper()
	folder := os.Getenv("DIBS_SHOTS")
	if folder == "" {
		return
	}
	var png []byte
	if err := chromedp.Run(r.tab, chromedp.FullScreenshot(&png, 100)); err == nil {
		err = os.WriteFile(filepath.Join(folder, strings.ReplaceAll(r.t.Name(), "/", "-")+"-"+name+".png"), png, 0o644)
		testkit.Check(r.t, err)
	}
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
			c.TTL, c.Stay = time.Hour, time.Hour
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
