//go:build nightly

package browser

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// fill makes a bad night: a stuck worker with waiters, strange keys, and unknown outcomes.
func (r *rig) fill() {
	r.t.Helper()
	for i, name := range []string{"invoice 42", "<img src=x onerror=alert(1)>", "\u202eright to left \"quotes\"\x00", "a-very-long-key-" + fmt.Sprintf("%0480d", 7)} {
		key := store.Key{Name: name, Namespace: []string{"", "", "shop", ""}[i]}
		r.claim(store.Claim{Key: key})
		for n := range 1 + 3*i {
			r.claim(store.Claim{Key: key, Mode: store.Queue, Owner: store.Owner{Host: fmt.Sprintf("web-%d.internal", n), PID: 100 + n, Label: "checkout"}})
		}
	}
	r.unknown(scope + "order-17")
	r.unknown("payout 9")
}

// TestLooks: on a phone and on a wide screen, in the light and in the dark, nothing is wider than the
// window, a strange key is text, and the console is silent.
func TestLooks(t *testing.T) {
	for _, width := range []int64{375, 1440} {
		for _, scheme := range []string{"light", "dark"} {
			t.Run(fmt.Sprintf("%d %s", width, scheme), func(t *testing.T) {
				r := start(t, width, 900, "")
				r.scheme(scheme)
				r.sees("#quiet", "Nobody waits")
				r.sees("#decided", "No outcome is unknown")
				r.shot("quiet")
				fits := func() {
					t.Helper()
					r.holds("document.documentElement.scrollWidth <= window.innerWidth && window.innerWidth === " + fmt.Sprint(width))
				}
				fits()
				r.fill()
				r.sees("#waits", "<img src=x onerror=alert(1)>")
				r.sees("#waits", `\u202eright to left "quotes"\x00`)
				r.sees("#undecided", "payout 9")
				fits()
				r.shot("home")
				if r.is("document.querySelectorAll('img').length > 0") {
					t.Error("a key has become an image")
				}
				r.run(chromedp.Click(`//bdi[text()="invoice 42"]`, chromedp.BySearch))
				r.sees("#key h2", "invoice 42")
				r.sees("#places", "web-0.internal pid 100 (checkout) has waited")
				r.sees("#meaning", "held")
				if !r.is("document.querySelectorAll('#diagram .now').length === 1 && document.querySelector('#diagram .now').dataset.state === 'held'") {
					t.Error("the diagram does not mark the state")
				}
				fits()
				r.shot("key")
				r.run(chromedp.Click(`#actions button`))
				r.sees("#sure", "takes the key from worker-1.internal pid 4711 (nightly report)")
				fits()
				r.shot("sure")
				r.run(chromedp.SendKeys("#q", "order-17"+kb.Enter))
				r.sees("#found", "order-17")
				fits()
				r.shot("found")
			})
		}
	}
}

// TestLive: what happens in the store is on an open page without a reload, and the focus stays
// where it is.
func TestLive(t *testing.T) {
	r := start(t, 1440, 900, "")
	r.sees("#quiet", "Nobody waits")
	holder, waiter := store.NewToken(), store.NewToken()
	key := store.Key{Name: "k"}
	r.claim(store.Claim{Key: key, Token: holder}, store.Claim{Key: key, Token: waiter, Mode: store.Queue})
	r.sees("#waits", "worker-1.internal")
	r.run(chromedp.Focus("#waits a"))
	r.claim(store.Claim{Key: key, Mode: store.Queue}, store.Claim{Key: key, Mode: store.Queue})
	r.sees("#counts", "3 waiters")
	if !r.is("document.activeElement === document.querySelector('#waits a')") {
		t.Error("an update has taken the focus away")
	}
	r.run(press(kb.Enter))
	r.sees("#holders", "held for")
	testkit.Must(t, r.store.Settle(t.Context(), []store.Settlement{{Key: key, Token: holder, Outcome: store.Release}}, make([]error, 1)))
	r.claim(store.Claim{Key: key, Token: waiter, Mode: store.Queue})
	r.holds("document.querySelectorAll('#places li').length === 2")
}

// TestStale: a page whose server is gone says so, and continues when it is back.
func TestStale(t *testing.T) {
	r := start(t, 1440, 900, "")
	r.sees("#quiet", "Nobody waits")
	r.run(chromedp.Evaluate("heard = Date.now() - 60000; source.close(); source.onmessage = null", nil))
	r.sees("#stale", "no word from the server")
	if !r.is("getComputedStyle(document.querySelector('#health b')).color === getComputedStyle(document.querySelector('#from')).color") {
		t.Error("what is stale looks as if it were good")
	}
	r.shot("stale")
	r.run(chromedp.Evaluate("listen()", nil))
	r.holds("document.getElementById('stale').hidden")
}

// TestActions: each takes two clicks, says what has become of it, and is in the log with its actor.
func TestActions(t *testing.T) {
	r := start(t, 1440, 900, "secret")
	r.fill()
	r.run(chromedp.WaitVisible("#token"), chromedp.SendKeys("#token", "wrong"+kb.Enter))
	r.sees("#refused", "unknown")
	r.shot("sign-in")
	r.run(chromedp.Evaluate("document.getElementById('token').value = ''", nil), chromedp.SendKeys("#token", "secret"+kb.Enter))
	r.sees("#who", "Ada")
	r.sees("#undecided", "payout 9")

	r.run(chromedp.Click(`//li[contains(., "order-17")]//a[contains(., "It happened")]`, chromedp.BySearch))
	r.sees("#sure", "For 24 hours, retries of this request get the answer")
	r.run(chromedp.SetValue("#sure [name=status]", "201"), chromedp.SetValue("#sure textarea", `{"id":17}`))
	r.shot("answer")
	r.click("Yes: store the answer")
	r.sees("#done", "Done")
	r.sees("#facts", "HTTP 201")
	r.sees("#stored", "9 bytes, application/json")
	r.sees("#stored pre", `{"id":17}`)
	r.click("Forget")
	r.sees("#sure", "deletes the record")
	if got := r.condition(scope + "order-17"); got != store.ConditionDone {
		t.Fatalf("after one click the key is %s", got)
	}
	r.click("Yes: forget")
	r.sees("#meaning", "free")

	r.click("All keys")
	r.run(chromedp.Click(`//li[contains(., "payout 9")]//a[contains(., "It did not happen")]`, chromedp.BySearch))
	r.sees("#sure", "the next caller runs")
	r.click("Cancel")
	r.holds("document.getElementById('sure').hidden")
	if got := r.condition("payout 9"); got != store.ConditionUnknown {
		t.Fatalf("after Cancel the key is %s", got)
	}
	r.click("It did not happen: let it run again")
	r.click("Yes: let it run again")
	r.sees("#meaning", "free")

	r.click("All keys")
	r.run(chromedp.Click(`//bdi[text()="invoice 42"]`, chromedp.BySearch))
	r.click("Release")
	r.click("Yes: release")
	r.sees("#done", "Done")
	if lines := r.log.With("a key was changed by hand", "viewer=Ada"); len(lines) != 4 {
		t.Errorf("the log has %q; want a line for each of four actions", lines)
	}
	if len(r.log.With("secret")) > 0 {
		t.Error("the token is in the log")
	}
	if r.is("document.cookie !== '' || location.href.includes('secret')") {
		t.Error("a script can read the cookie, or the token is in the address")
	}
	r.click("Sign out")
	r.sees("#signin", "Sign in")
	r.run(chromedp.Reload())
	r.sees("#signin", "Sign in")
}

// TestSearch: a search shows at once what is on the page, and goes through all keys on request, or if it has
// found none. It says how many it has looked at.
func TestSearch(t *testing.T) {
	r := start(t, 1440, 900, "")
	r.fill()
	r.claim(store.Claim{Key: store.Key{Name: "invoice, briefly"}})
	r.run(chromedp.SendKeys("#q", "invoice"+kb.Enter))
	r.sees("#hits", "1 key")
	r.run(chromedp.Click("#deep"))
	r.sees("#hits", "2 keys of all (7 looked at)")
	r.sees("#found ul", "invoice, briefly")
	r.holds("document.querySelectorAll('#found li').length === 2 && document.getElementById('deep').hidden")
	r.shot("all")
	r.run(chromedp.Evaluate("document.getElementById('q').value = ''", nil), chromedp.SendKeys("#q", "briefly"+kb.Enter))
	r.sees("#hits", "1 key of all (7 looked at)")
	r.run(chromedp.Evaluate("document.getElementById('q').value = ''", nil), chromedp.SendKeys("#q", "nothing of the kind"+kb.Enter))
	r.sees("#hits", "No key of all (7 looked at)")
}

// TestKeyboard: from the search to the release with the keyboard only.
func TestKeyboard(t *testing.T) {
	r := start(t, 1440, 900, "")
	r.fill()
	r.sees("#waits", "invoice 42")
	r.run(press("/", "i", "n", "v", "o", "i", "c", "e", kb.Enter))
	r.sees("#found", "1 key")
	r.holds("document.activeElement.tagName === 'H2'")
	r.run(press(kb.Tab, kb.Enter))
	r.sees("#key h2", "invoice 42")
	r.sees("#actions", "Release")
	r.holds("document.activeElement === document.querySelector('#key h2')")
	r.run(press(kb.Tab, kb.Enter))
	r.sees("#sure", "takes the key")
	if !r.is("document.activeElement.textContent === 'Cancel'") {
		t.Error("the focus is not on Cancel, so Enter twice releases a key")
	}
	r.run(press(kb.Escape))
	r.holds("document.getElementById('sure').hidden")
	r.run(press(kb.Tab, kb.Enter))
	r.sees("#sure", "takes the key")
	r.run(chromedp.Evaluate("document.querySelector('#sure .danger').focus()", nil), press(kb.Enter))
	r.sees("#done", "Done")
}

// TestMany: with 10,000 keys held and 3,000 waiters the page shows the oldest waits and stays usable.
func TestMany(t *testing.T) {
	r := start(t, 1440, 900, "")
	claims := make([]store.Claim, 10_000)
	for i := range claims {
		claims[i].Key.Name = fmt.Sprintf("key %d", i)
	}
	r.claim(claims...)
	waiters := make([]store.Claim, 3000)
	for i := range waiters {
		waiters[i] = store.Claim{Key: store.Key{Name: fmt.Sprintf("key %d", i%500)}, Mode: store.Queue}
	}
	r.claim(waiters...)
	r.sees("#counts", "3,000 waiters, 0 keys held for more than 5 min")
	r.holds("document.querySelectorAll('#waits tbody tr').length === 200")
	r.shot("many")
	r.run(chromedp.Navigate(r.URL + "/#find?" + url.Values{"q": {"key 9999"}}.Encode()))
	r.sees("#found", "1 key")
}
