package conform_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/memstore"
	"github.com/dibs-go/dibs/proof/conform"
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
			running-replayed principals-apart hosts-apart patch put-delete kept-errors kept-conflict
			kept-redirect failed-runs-again limited-runs-again unauthorized-runs-again control-no-store
			control-max-age control-hidden body-bytes body-empty status-204 status-unusual body-large body-huge
			request-large body-chunked body-encoded body-untyped trailers informational stream fields
			fields-several fields-hop fields-date fields-framing fields-set-cookie fields-moment mark-forged
			connection-reused pipelined-duplicate http10 expect request-chunked request-trailer
			connection-names-key client-gone client-gone-running`, may: "running-race keys-many",
	},
	{
		name:    "replays without comparing",
		options: idempotency.Options{Fingerprint: by(func(*http.Request) string { return "" }, false)},
		fails: `
			mismatch-body mismatch-longer mismatch-empty mismatch-method mismatch-path mismatch-query
			mismatch-type mismatch-problem mismatch-discreet running-mismatch request-large`,
	},
	{
		name:    "compares the body alone",
		options: idempotency.Options{Fingerprint: by(func(*http.Request) string { return "" }, true)},
		fails:   "mismatch-method mismatch-path mismatch-query mismatch-type",
	},
	{
		name: "compares how the body is framed",
		options: idempotency.Options{Fingerprint: by(func(r *http.Request) string {
			return r.Method + r.RequestURI + r.Header.Get("Content-Type") + fmt.Sprint(r.TransferEncoding)
		}, true)},
		fails: "same-framing",
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
			return r.Method + r.RequestURI + b.String()
		}, true)},
		fails: "same-framing same-other-fields same-preferences",
	},
	{name: "looks first and claims later", around: racing, fails: `
			running-once running-refused running-retry-after running-problem running-replayed running-mismatch
			client-gone-running`, may: "running-race keys-many"},
	{name: "keeps 5xx", options: idempotency.Options{Store5xx: true}, fails: "failed-runs-again"},
	{name: "keeps what should pass", options: idempotency.Options{Keep: func(status int) bool { return status < 500 }}, fails: "limited-runs-again unauthorized-runs-again"},
	{name: "keeps successes only", options: idempotency.Options{Keep: func(status int) bool { return status < 300 }}, fails: "kept-errors kept-conflict kept-redirect status-unusual"},
	{name: "keeps cookies", options: idempotency.Options{KeepSetCookie: true}, fails: "fields-set-cookie"},
	{name: "runs again what is too long", options: idempotency.Options{OnOversize: idempotency.Rerun}, fails: "body-huge"},
	{name: "keeps little", options: idempotency.Options{MaxStored: 10 << 10}, fails: "body-large"},
	{name: "shares keys between principals", options: idempotency.Options{Scope: idempotency.ScopeNone}, fails: "principals-apart principals-blind principals-anonymous"},
	{name: "shares keys between hosts", options: idempotency.Options{AnyAuthority: true}, fails: "hosts-apart"},
	{name: "makes duplicates wait", options: idempotency.Options{Wait: 5 * time.Second}, fails: "running-refused running-retry-after running-problem"},
	{name: "guards POST alone", options: idempotency.Options{Methods: []string{"POST"}}, fails: "mismatch-method patch put-delete"},
	{name: "knows one field", options: idempotency.Options{IgnoreXKey: true}, fails: "key-x key-x-differs"},
	{name: "requires keys unasked", options: idempotency.Options{RequireKey: true}, fails: "missing-runs"},
	{name: "accepts strings only", options: idempotency.Options{StrictKey: true}, fails: "key-bare key-bare-is-quoted"},
	{name: "accepts anything though it is strict", said: conform.Options{StrictKey: true}, fails: "key-strict"},
	{name: "requires no keys though it says so", said: conform.Options{RequireKey: true}, fails: "missing-refused missing-problem"},
	{name: "takes a malformed key for none", around: lenient, fails: `
			malformed-empty malformed-unbalanced malformed-list malformed-trailing malformed-escape
			malformed-bare-space malformed-control malformed-non-ascii malformed-too-long malformed-lines
			malformed-problem`},
	{name: "folds keys", around: keyed(strings.ToLower), fails: "key-case"},
	{name: "cuts keys", around: keyed(func(key string) string {
		if len(key) > 66 && strings.HasSuffix(key, `"`) {
			return key[:65] + `"`
		}
		return key
	}), fails: "key-long malformed-too-long"},
	{name: "drops the fields", around: replaying(func(h http.Header) {
		for name := range h {
			if name != "Content-Type" && name != "Content-Length" && name != "Idempotent-Replayed" {
				delete(h, name)
			}
		}
	}), fails: "kept-redirect body-encoded trailers fields fields-several"},
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
	{name: "guards safe methods too", around: disguised, within: undisguised, fails: "safe-get safe-head safe-options safe-after control-hidden mark-forged"},
	{name: "ends with its client", around: remembering, within: ending, fails: "client-gone client-gone-running"},
	{name: "takes a part for the whole", within: buffering, fails: "informational stream origin-hangs-up sent-once answer-cut answer-cut-chunks"},
	{name: "takes half a request for a whole one", around: halving, fails: "body-cut"},
	{name: "cleans paths", around: cleaning, fails: "target-as-sent"},
}

// TestBroken: each broken implementation fails exactly the cases that it should.
func TestBroken(t *testing.T) {
	for _, b := range brokenOnes {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			origin := conform.NewOrigin()
			memory, err := memstore.New(nil)
			if err != nil {
				t.Fatal(err)
			}
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
			b.said.Profile, b.said.Skip = conform.Dibs, ofTheServer
			fails(t, run(t, h, origin, b.said), b.fails, b.may)
		})
	}
}

// fails checks that these cases failed, and no others but those that may.
func fails(t *testing.T, r *conform.Report, want, may string) {
	t.Helper()
	var failed []string
	for i := range r.Results {
		c := &r.Results[i]
		if c.Outcome == conform.Failed {
			failed = append(failed, c.Case.ID)
		}
		if slices.Contains(strings.Fields(may), c.Case.ID) {
			continue
		}
		if slices.Contains(strings.Fields(want), c.Case.ID) != (c.Outcome == conform.Failed) {
			t.Errorf("unexpected: %s", c.Line())
		}
	}
	t.Logf("%d failed: %s", len(failed), strings.Join(failed, " "))
}

// forgetful is a store that keeps no records.
type forgetful struct{ *memstore.Store }

func (s *forgetful) Settle(ctx context.Context, settlements []dibs.Settlement, errs []error) error {
	settlements = slices.Clone(settlements)
	for i := range settlements {
		if settlements[i].Outcome == dibs.Keep {
			settlements[i] = dibs.Settlement{Key: settlements[i].Key, Token: settlements[i].Token}
		}
	}
	return s.Store.Settle(ctx, settlements, errs)
}

// by makes the fingerprint of a text, and of the body if it counts.
func by(text func(*http.Request) string, body bool) idempotency.FingerprintOptions {
	return idempotency.FingerprintOptions{Func: func(r *http.Request, content io.ReadSeeker) (dibs.Fingerprint, error) {
		h := sha256.New()
		_, _ = io.WriteString(h, text(r))
		if body {
			if _, err := io.Copy(h, content); err != nil {
				return dibs.Fingerprint{}, err
			}
		}
		return dibs.Fingerprint(h.Sum(nil)), nil
	}}
}

// racing keeps a duplicate from the guard while the first one runs, as if it had looked
// before the other one had claimed.
func racing(next http.Handler) http.Handler {
	var mu sync.Mutex
	running := make(map[string]int)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		mu.Lock()
		running[key]++
		if running[key] > 1 {
			r.Header.Set("Idempotency-Key", `"another-`+fmt.Sprint(running[key])+strings.Trim(key, `"`)+`"`)
		}
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			running[key]--
		}()
		next.ServeHTTP(w, r)
	})
}

func lenient(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lines := r.Header["Idempotency-Key"]
		if len(lines) > 0 {
			if _, err := idempotency.ParseKey(lines[0], false); err != nil || len(lines) > 1 {
				r.Header.Del("Idempotency-Key")
			}
		}
		next.ServeHTTP(w, r)
	})
}

// keyed changes keys.
func keyed(change func(string) string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for i, line := range r.Header["Idempotency-Key"] {
				r.Header["Idempotency-Key"][i] = change(line)
			}
			next.ServeHTTP(w, r)
		})
	}
}

// answering changes the header of every answer when it leaves.
func answering(change func(h http.Header, status int)) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(&changing{ResponseWriter: w, change: change}, r)
		})
	}
}

// replaying changes the header of replays.
func replaying(change func(http.Header)) func(http.Handler) http.Handler {
	return answering(func(h http.Header, _ int) {
		if h.Get("Idempotent-Replayed") != "" {
			change(h)
		}
	})
}

type changing struct {
	http.ResponseWriter
	change func(h http.Header, status int)
}

func (w *changing) WriteHeader(status int) {
	if status >= 200 {
		w.change(w.Header(), status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *changing) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// disguised has the guard take safe methods for others.
func disguised(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if method := r.Method; method == "GET" || method == "HEAD" || method == "OPTIONS" {
			r = r.WithContext(context.WithValue(r.Context(), methodKey{}, method))
			r.Method = "X-" + method
		}
		next.ServeHTTP(w, r)
	})
}

type methodKey struct{}

func undisguised(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if method, ok := r.Context().Value(methodKey{}).(string); ok {
			r = r.WithContext(r.Context())
			r.Method = method
		}
		next.ServeHTTP(w, r)
	})
}

// remembering keeps the client's context, which the guard hides.
func remembering(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), clientKey{}, r.Context())))
	})
}

type clientKey struct{}

// ending has a run end with its client.
func ending(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r)
		if r.Context().Value(clientKey{}).(context.Context).Err() != nil {
			panic(http.ErrAbortHandler)
		}
	})
}

// buffering takes what there is of an answer for all of it.
func buffering(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			next.ServeHTTP(w, r)
			return
		}
		b := &buffered{header: make(http.Header)}
		func() {
			defer func() { _ = recover() }()
			next.ServeHTTP(b, r)
		}()
		for name, values := range b.header {
			if name != "Content-Length" {
				w.Header()[name] = values
			}
		}
		w.WriteHeader(max(b.status, 200))
		_, _ = w.Write(b.body.Bytes())
	})
}

type buffered struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (b *buffered) Header() http.Header { return b.header }

func (b *buffered) WriteHeader(status int) { b.status = status }

func (b *buffered) Write(p []byte) (int, error) { return b.body.Write(p) }

// halving takes what has come of a request for all of it.
func halving(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(text))
		next.ServeHTTP(w, r)
	})
}

// cleaning makes paths tidy, as many routers do.
func cleaning(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.RequestURI = strings.ReplaceAll(strings.ReplaceAll(r.RequestURI, "/./", "/"), "//", "/")
		next.ServeHTTP(w, r)
	})
}

// TestWithoutGuard: the origin alone fails what makes the difference.
func TestWithoutGuard(t *testing.T) {
	t.Parallel()
	origin := conform.NewOrigin()
	fails(t, run(t, origin, origin, conform.Options{Profile: conform.Dibs, Skip: ofTheServer}), `
		replay replay-many replay-late replay-at-once replay-together replay-marked keys-many key-uuid
		key-bare key-bare-is-quoted key-parameters key-escapes key-padding key-field-case key-long key-x
		key-x-differs malformed-empty malformed-unbalanced malformed-list malformed-trailing
		malformed-escape malformed-bare-space malformed-control malformed-non-ascii malformed-too-long
		malformed-lines malformed-problem mismatch-body mismatch-longer mismatch-empty mismatch-method
		mismatch-path mismatch-query mismatch-type mismatch-unharmed mismatch-problem same-framing
		same-other-fields same-preferences running-once running-race running-refused running-retry-after
		running-problem running-replayed running-mismatch principals-apart hosts-apart patch put-delete
		kept-errors kept-conflict kept-redirect failed-runs-again limited-runs-again unauthorized-runs-again
		control-no-store control-max-age control-hidden body-bytes body-empty status-204 status-unusual
		body-large body-huge request-large body-chunked body-encoded body-untyped trailers informational
		stream fields fields-several fields-hop fields-date fields-framing fields-set-cookie fields-moment
		mark-forged connection-reused pipelined-duplicate http10 expect request-chunked request-trailer
		connection-names-key client-gone client-gone-running body-cut`, "")
}

// TestBrokenProxy: a middleware before the standard library's proxy and transport, which
// sends a request again when it has a key and its connection died.
func TestBrokenProxy(t *testing.T) {
	t.Parallel()
	origin, err := conform.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = origin.Close() })
	to, err := url.Parse("http://" + origin.Addr())
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	fails(t, run(t, guard(t, nil, nil).Wrap(proxy), origin, conform.Options{Profile: conform.Dibs, Skip: ofTheServer}), "target-as-sent connection-names-key sent-once", "")
}

// TestEveryCaseCanFail: nothing passes at a target that leads one request to the origin
// and then answers all by itself, with what nobody expects.
func TestEveryCaseCanFail(t *testing.T) {
	t.Parallel()
	for _, said := range []conform.Options{{}, {RequireKey: true, StrictKey: true, Keeps5xx: true}} {
		origin := conform.NewOrigin()
		var first sync.Once
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Idempotent-Replayed", "true")
				http.Error(w, "no", http.StatusTeapot)
			}))
			first.Do(func() { next = origin })
			next.ServeHTTP(w, r)
		})
		said.Profile = conform.Dibs
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
