//go:build nightly

package conform_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/idempotency/conform"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

// broken is an implementation with one fault, and the cases that must find it.
type broken struct {
	name    string
	options idempotency.Options
	store   func(*memstore.Store) dibs.Store
	// around and within are put before and behind the middleware.
	around, within func(http.Handler) http.Handler
	said           conform.Options
	fails          string
	// may are those that find it if requests overlap, which is not in their hands.
	may string
}

var brokenOnes = []broken{
	{
		name:  "forgets its answers",
		store: func(s *memstore.Store) dibs.Store { return &forgetful{s} },
		fails: `
			replay replay-many replay-late replay-at-once replay-together replay-marked key-uuid key-bare
			key-bare-is-quoted key-parameters key-escapes key-padding key-field-case key-long key-x
			mismatch-body mismatch-longer mismatch-empty mismatch-method mismatch-path mismatch-query
			mismatch-type mismatch-unharmed mismatch-problem same-framing same-other-fields same-preferences
			running-replayed principals-apart hosts-apart patch put-delete kept-errors conflict-runs-again later-runs-again
			control-keeps api-keys-apart http10-informational kept-redirect failed-runs-again limited-runs-again unauthorized-runs-again control-no-store
			control-max-age control-hidden body-bytes body-empty status-204 status-unusual body-large body-huge
			request-large body-chunked body-encoded body-untyped trailers informational stream fields
			fields-several fields-hop fields-date fields-framing fields-set-cookie fields-moment mark-forged
			connection-reused pipelined-duplicate http10 expect request-chunked request-trailer
			connection-names-key client-gone client-gone-running
			same-empty target-absolute upgrade-offered status-205 fields-odd fields-large client-gone-answer client-gone-huge client-slow body-slow
			mismatch-encoding stream-running stream-lost connection-close`, may: "running-once running-race keys-many",
	},
	{
		name:    "replays without comparing",
		options: idempotency.Options{Fingerprint: by(func(*http.Request) string { return "" }, false)},
		fails: `
			mismatch-body mismatch-longer mismatch-empty mismatch-method mismatch-path mismatch-query
			mismatch-type mismatch-problem mismatch-discreet running-mismatch request-large
			mismatch-encoding`,
	},
	{
		name:    "compares the body alone",
		options: idempotency.Options{Fingerprint: by(func(*http.Request) string { return "" }, true)},
		fails:   "mismatch-method mismatch-path mismatch-query mismatch-type mismatch-encoding",
	},
	{
		name: "compares how the body is framed",
		options: idempotency.Options{Fingerprint: by(func(r *http.Request) string {
			return r.Method + r.URL.RequestURI() + r.Header.Get("Content-Type") + fmt.Sprint(r.TransferEncoding)
		}, true)},
		fails: "same-framing same-empty mismatch-encoding",
	},
	{
		name: "compares all fields",
		options: idempotency.Options{Fingerprint: by(func(r *http.Request) string {
			h := r.Header.Clone()
			delete(h, "Idempotency-Key")
			delete(h, "X-Idempotency-Key")
			delete(h, "Trailer")
			var b strings.Builder
			_ = h.Write(&b)
			return r.Method + r.URL.RequestURI() + b.String()
		}, true)},
		fails: "same-framing same-other-fields same-preferences same-empty",
	},
	{name: "looks first and claims later", around: racing, within: ran, fails: `
			running-once running-refused running-retry-after running-problem running-replayed running-mismatch
			body-slow
			stream-running`, may: "running-race keys-many client-slow client-gone client-gone-huge client-gone-answer client-gone-running stream-lost"},
	{name: "keeps 5xx", options: idempotency.Options{Keep: []string{"default", "5xx"}}, fails: "failed-runs-again"},
	{name: "keeps what should pass", options: idempotency.Options{Keep: []string{"2xx", "3xx", "4xx"}}, fails: "limited-runs-again unauthorized-runs-again conflict-runs-again"},
	{name: "keeps successes only", options: idempotency.Options{Keep: []string{"2xx"}}, fails: "kept-errors kept-redirect status-unusual"},
	{name: "keeps what says come back later", within: answering(func(h http.Header, _ int) { h.Del("Retry-After") }), fails: "later-runs-again"},
	{name: "keeps cookies", options: idempotency.Options{KeepSetCookie: true}, fails: "fields-set-cookie"},
	{name: "runs again what is too long", options: idempotency.Options{OnOversize: idempotency.Rerun}, fails: "body-huge client-gone-huge"},
	{name: "keeps little", options: idempotency.Options{MaxStored: 10 << 10}, fails: "body-large client-gone-answer client-slow"},
	{name: "shares keys between principals", options: idempotency.Options{Scope: []idempotency.ScopePart{idempotency.ScopeNone}}, fails: "principals-apart principals-blind principals-anonymous api-keys-apart"},
	{name: "looks at Authorization alone", options: idempotency.Options{Scope: []idempotency.ScopePart{idempotency.ScopeAuthorization}}, fails: "api-keys-apart"},
	{name: "shares keys between hosts", around: as(func(r *http.Request) { r.Host = "one.example" }), fails: "hosts-apart"},
	{name: "makes duplicates wait", options: idempotency.Options{Wait: time.Minute}, said: conform.Options{Timeout: 40 * time.Second}, fails: "running-refused running-retry-after running-problem stream-running"},
	{name: "guards POST alone", options: idempotency.Options{Methods: []string{"POST"}}, fails: "mismatch-method patch put-delete"},
	{name: "knows one field", around: as(func(r *http.Request) { r.Header.Del("X-Idempotency-Key") }), fails: "key-x key-x-differs"},
	{name: "requires keys unasked", options: idempotency.Options{RequireKey: true}, fails: "missing-runs upgrade-around key-in-trailer"},
	{name: "accepts strings only", options: idempotency.Options{StrictKey: true}, fails: "key-bare key-bare-is-quoted"},
	{name: "accepts anything though it is strict", said: conform.Options{StrictKey: true}, fails: "key-strict"},
	{name: "requires no keys though it says so", said: conform.Options{RequireKey: true}, fails: "missing-refused missing-problem"},
	{name: "takes a malformed key for none", around: lenient, fails: `
			malformed-empty malformed-unbalanced malformed-list malformed-trailing malformed-escape
			malformed-bare-space malformed-control malformed-non-ascii malformed-too-long malformed-lines
			malformed-problem refusal-arrives`},
	{name: "folds keys", around: keyed(strings.ToLower), fails: "key-case"},
	{name: "cuts keys", around: keyed(func(key string) string {
		if len(key) > 66 && strings.HasSuffix(key, `"`) {
			return key[:65] + `"`
		}
		return key
	}), fails: "key-long malformed-too-long refusal-arrives"},
	{name: "drops the fields", around: replaying(func(h http.Header) {
		for name := range h {
			if name != "Content-Type" && name != "Content-Length" && name != "Idempotent-Replayed" {
				delete(h, name)
			}
		}
	}), fails: "kept-redirect body-encoded trailers fields fields-several fields-odd fields-large"},
	{name: "joins lines", around: replaying(func(h http.Header) {
		for name, values := range h {
			if len(values) > 1 {
				h[name] = []string{strings.Join(values, ", ")}
			}
		}
	}), fails: "fields-several"},
	{name: "keeps what was of the moment", around: replaying(func(h http.Header) {
		h.Set("Date", "Sun, 06 Nov 1994 08:49:37 GMT")
		h.Set("Keep-Alive", "timeout=5")
		h.Set("Age", "1")
	}), fails: "fields-hop fields-date fields-moment"},
	{name: "does not mark replays", around: replaying(func(h http.Header) { h.Del("Idempotent-Replayed") }), fails: "replay-marked mark-forged"},
	{name: "marks everything", around: answering(func(h http.Header, _ int) { h.Set("Idempotent-Replayed", "true") }), fails: "first-runs replay-marked running-unmarked mark-forged"},
	{name: "refuses in plain text", around: answering(func(h http.Header, _ int) {
		if h.Get("Content-Type") == "application/problem+json" {
			h.Set("Content-Type", "text/plain")
		}
	}), fails: "malformed-problem mismatch-problem running-problem"},
	{name: "does not say when to come back", around: answering(func(h http.Header, status int) {
		if status == http.StatusConflict {
			h.Del("Retry-After")
		}
	}), fails: "running-retry-after"},
	{name: "guards safe methods too", around: disguised, within: undisguised, fails: "safe-get safe-head safe-options safe-after upgrade control-hidden mark-forged"},
	{name: "ends with its client", around: remembering, within: ending, fails: "client-gone client-gone-running", may: "client-gone-huge stream-lost"},
	{name: "takes a part for the whole", within: buffering, fails: "informational stream origin-hangs-up sent-once answer-cut answer-cut-chunks stream-running stream-lost"},
	{name: "takes half a request for a whole one", around: halving, fails: "body-cut request-two-lengths"},
	{name: "hangs up while a client still sends", around: hasty, fails: "refusal-arrives"},
	{name: "informs clients of HTTP/1.0", around: informing, fails: "http10-informational"},
	{name: "cleans paths", around: cleaning, fails: "target-as-sent"},
}

// brokenTimeout bounds each case: some wait a quarter of it for what a broken implementation
// does not do.
const brokenTimeout = time.Minute

// TestBroken: each broken implementation fails exactly the cases that it should.
func TestBroken(t *testing.T) {
	for _, b := range brokenOnes {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			origin := conform.NewOrigin()
			memory, err := memstore.New(nil)
			testkit.Must(t, err)
			t.Cleanup(func() { _ = memory.Close() })
			var store dibs.Store = memory
			if b.store != nil {
				store = b.store(memory)
			}
			var h http.Handler = origin
			if b.within != nil {
				h = b.within(h)
			}
			h = guard(t, store, &b.options).Wrap(h)
			if b.around != nil {
				h = b.around(h)
			}
			b.said.Profile, b.said.Skip, b.said.Timeout = conform.Dibs, ofTheServer, cmp.Or(b.said.Timeout, brokenTimeout)
			fails(t, run(t, h, origin, b.said), b.fails, b.may)
		})
	}
}

// TestWithoutGuard: the origin alone fails what makes the difference.
func TestWithoutGuard(t *testing.T) {
	t.Parallel()
	origin := conform.NewOrigin()
	fails(t, run(t, origin, origin, conform.Options{Profile: conform.Dibs, Skip: ofTheServer, Timeout: brokenTimeout}), `
		replay replay-many replay-late replay-at-once replay-together replay-marked keys-many key-uuid
		key-bare key-bare-is-quoted key-parameters key-escapes key-padding key-field-case key-long key-x
		key-x-differs malformed-empty malformed-unbalanced malformed-list malformed-trailing
		malformed-escape malformed-bare-space malformed-control malformed-non-ascii malformed-too-long
		malformed-lines malformed-problem mismatch-body mismatch-longer mismatch-empty mismatch-method
		mismatch-path mismatch-query mismatch-type mismatch-unharmed mismatch-problem same-framing
		same-other-fields same-preferences running-once running-race running-refused running-retry-after
		running-problem running-replayed running-mismatch principals-apart hosts-apart patch put-delete
		kept-errors conflict-runs-again later-runs-again control-keeps api-keys-apart http10-informational
		refusal-arrives kept-redirect failed-runs-again limited-runs-again unauthorized-runs-again
		control-no-store control-max-age control-hidden body-bytes body-empty status-204 status-unusual
		body-large body-huge request-large body-chunked body-encoded body-untyped trailers informational
		stream fields fields-several fields-hop fields-date fields-framing fields-set-cookie fields-moment
		mark-forged connection-reused pipelined-duplicate http10 expect request-chunked request-trailer
		connection-names-key client-gone client-gone-running body-cut
		same-empty target-absolute upgrade-offered status-205 fields-odd fields-large request-two-lengths
		client-gone-answer client-gone-huge client-slow body-slow
		mismatch-encoding stream-running stream-lost connection-close`, "")
}

// TestBrokenProxy: a middleware before the standard library's proxy and transport, which
// sends a request again when it has a key and its connection died.
func TestBrokenProxy(t *testing.T) {
	t.Parallel()
	origin, err := conform.Listen("127.0.0.1:0")
	testkit.Must(t, err)
	t.Cleanup(func() { _ = origin.Close() })
	to, err := url.Parse("http://" + origin.Addr())
	testkit.Must(t, err)
	transport := &http.Transport{MaxIdleConnsPerHost: 32} // or those of other cases take what it keeps
	t.Cleanup(transport.CloseIdleConnections)
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: transport,
		ErrorLog:  log.New(io.Discard, "", 0),
	}
	fails(t, run(t, guard(t, nil, nil).Wrap(proxy), origin, conform.Options{Profile: conform.Dibs, Skip: ofTheServer, Timeout: brokenTimeout}), "target-as-sent connection-names-key upgrade-around sent-once fence fields-folded", "origin-stray")
}

// TestEveryCaseCanFail: nothing passes at a target that leads one request to the origin
// and then answers all by itself, with what no case expects.
func TestEveryCaseCanFail(t *testing.T) {
	t.Parallel()
	for _, said := range []conform.Options{{}, {RequireKey: true, StrictKey: true, Keeps5xx: true}} {
		// It listens, so that the cases about what it writes by hand are not left out.
		origin, err := conform.Listen("127.0.0.1:0")
		testkit.Must(t, err)
		t.Cleanup(func() { _ = origin.Close() })
		var first sync.Once
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Idempotent-Replayed", "true")
				http.Error(w, "no", http.StatusTeapot)
			}))
			first.Do(func() { next = origin })
			next.ServeHTTP(w, r)
		})
		said.Profile, said.Timeout = conform.Dibs, 8*time.Second
		said.Restart = func(context.Context) error { return nil }
		r := run(t, h, origin, said)
		for i := range r.Results {
			// What cannot be read never reaches a handler of net/http's.
			if c := &r.Results[i]; c.Outcome == conform.Passed && c.Case.ID != "request-two-lengths" {
				t.Errorf("passed: %s", c.Line())
			}
		}
	}
}

// as changes each request before the middleware has it.
func as(change func(*http.Request)) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			change(r)
			next.ServeHTTP(w, r)
		})
	}
}
