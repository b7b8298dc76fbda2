//go:build nightly

package browser

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

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
