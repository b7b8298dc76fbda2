//go:build nightly

package browser

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// tab is a tab of a browser.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	complain []string // under mu: what the console says
}

// newTab starts a browser with a window of that size. Each document runs the scripts first.
func newTab(t *testing.T, width, height int64, scale float64, scripts ...string) *tab {
	t.Helper()
	b := &tab{t: t}
	flags := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(servertest.Chromium(t)), chromedp.NoSandbox)
	browser, end := chromedp.NewExecAllocator(context.Background(), flags...)
	ctx, closeTab := chromedp.NewContext(browser)
	b.ctx = ctx
	t.Cleanup(func() {
		closeTab()
		end()
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.complain) > 0 {
			t.Errorf("the console says %q", b.complain)
		}
	})
	chromedp.ListenTarget(ctx, func(event any) {
		text := ""
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			text = e.ExceptionDetails.Error()
		case *runtime.EventConsoleAPICalled:
			text = fmt.Sprint(e.Type)
		}
		if text != "" {
			b.mu.Lock()
			b.complain = append(b.complain, text)
			b.mu.Unlock()
		}
	})
	testkit.Must(t, chromedp.Run(ctx)) // starts the browser, which ends with that context
	b.run(emulation.SetDeviceMetricsOverride(width, height, scale, width < 800))
	for _, script := range scripts {
		b.run(chromedp.ActionFunc(func(ctx context.Context) error {
			_, err := page.AddScriptToEvaluateOnNewDocument(script).Do(ctx)
			return err
		}))
	}
	return b
}

// scheme makes the page light or dark.
func (b *tab) scheme(name string) {
	b.t.Helper()
	b.run(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}))
}

// run runs actions.
func (b *tab) run(actions ...chromedp.Action) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		b.shot("failed")
		b.t.Fatal(err)
	}
}

// sees waits until an element has a text.
func (b *tab) sees(selector, text string) {
	b.t.Helper()
	b.holds(fmt.Sprintf(`(document.querySelector(%q)?.checkVisibility() ? document.querySelector(%q).innerText : '').includes(%q)`, selector, selector, text))
}

// holds waits until an expression is true in the page.
func (b *tab) holds(expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	if err := chromedp.Run(ctx, chromedp.Poll(expression, nil, chromedp.WithPollingInterval(50*time.Millisecond), chromedp.WithPollingTimeout(50*time.Second))); err != nil {
		b.shot("failed")
		var text string
		_ = chromedp.Run(b.ctx, chromedp.Evaluate("document.body.innerText", &text))
		b.t.Fatalf("it does not hold that %s: %v\n%s", expression, err, text)
	}
}

// is reports whether an expression is true now.
func (b *tab) is(expression string) (holds bool) {
	b.t.Helper()
	b.run(chromedp.Evaluate(expression, &holds))
	return holds
}

// click clicks on a button or a link that can be seen.
func (b *tab) click(text string) {
	b.t.Helper()
	b.run(chromedp.Click(`//*[self::button or self::a][not(ancestor-or-self::*[@hidden])][normalize-space()="`+text+`"]`, chromedp.BySearch, chromedp.NodeVisible))
}

// shot writes a picture to the folder DIBS_SHOTS, if that is set.
func (b *tab) shot(name string) {
	b.t.Helper()
	folder := os.Getenv("DIBS_SHOTS")
	if folder == "" {
		return
	}
	var png []byte
	if err := chromedp.Run(b.ctx, chromedp.FullScreenshot(&png, 100)); err == nil {
		err = os.WriteFile(filepath.Join(folder, strings.ReplaceAll(b.t.Name(), "/", "-")+"-"+name+".png"), png, 0o644)
		testkit.Check(b.t, err)
	}
}

// sendPage charges when it is opened and nothing has been charged in its tab. PROXY is the proxy.
const sendPage = `<!doctype html><title>Pay</title><p id="said">…</p><script type="module">
import { send } from "/send.js";
window.statuses = [];
const real = window.fetch;
window.fetch = async (...call) => {
	const answer = await real(...call);
	window.statuses.push(answer.status);
	return answer;
};
const answer = await send("PROXY/charges", { method: "POST", body: "amount=700", intention: "order 17", storage: sessionStorage, maxTries: 1000 });
document.querySelector("#said").innerText = answer.status + " " + await answer.text();
</script>`

// TestSend: a page charges through a proxy of another origin. It is opened again while the charge runs, and
// again when that is done. The key outlives the page and not its answer, so there are two charges.
func TestSend(t *testing.T) {
	n := newNight(t)
	var proxy string // its URL
	charged, answer := make(chan string, 2), make(chan int, 2)
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		if r.Method == http.MethodOptions {
			return
		}
		body, err := io.ReadAll(r.Body)
		testkit.Check(t, err)
		charged <- r.Header.Get("Idempotency-Key") + " " + string(body)
		select {
		case n := <-answer:
			fmt.Fprintf(w, "charge %d", n)
		case <-t.Context().Done():
		}
	}))
	t.Cleanup(origin.Close)
	shop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/send.js":
			w.Header().Set("Content-Type", "text/javascript")
			_, _ = w.Write(testkit.ReadFile(t, "../../clients/js/send.js"))
		case "/":
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = io.WriteString(w, strings.Replace(sendPage, "PROXY", proxy, 1))
		}
	}))
	t.Cleanup(shop.Close)
	config := filepath.Join(n.folder, "dibs.yaml")
	testkit.Must(t, os.WriteFile(config, []byte("cors: "+shop.URL+"\n"), 0o600))
	_, proxy, _ = n.proxy(origin, "--config", config)

	b := newTab(t, 400, 300, 1)
	b.run(chromedp.Navigate(shop.URL))
	first := testkit.Await(t, "the charge", charged)
	b.run(chromedp.Reload())
	b.holds("statuses.includes(409)") // with a Retry-After that the page reads, or it would not try again
	answer <- 1
	b.sees("#said", "200 charge 1")
	if !b.is("sessionStorage.length === 0") {
		t.Error("the key outlives its answer")
	}
	answer <- 2
	b.run(chromedp.Reload())
	if second := testkit.Await(t, "the second charge", charged); second == first {
		t.Errorf("both charges are %s", first)
	}
	b.sees("#said", "200 charge 2")
}
