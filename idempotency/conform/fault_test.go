//go:build nightly

package conform_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// forgetful is a store that keeps no records.
type forgetful struct{ *memstore.Store }

func (s *forgetful) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	settlements = slices.Clone(settlements)
	for i := range settlements {
		if settlements[i].Outcome == store.Keep {
			settlements[i] = store.Settlement{Key: settlements[i].Key, Token: settlements[i].Token}
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
// before the other one had claimed. It has run when the origin, behind ran, is done with
// it, or else when it is answered.
func racing(next http.Handler) http.Handler {
	var mu sync.Mutex
	running := make(map[string]bool) // by key; false once it has run
	others := 0
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		mu.Lock()
		runs, known := running[key]
		if runs {
			others++
			r.Header.Set("Idempotency-Key", fmt.Sprintf(`"another-%d-%s"`, others, strings.Trim(key, `"`)))
		}
		if !known {
			running[key] = true
			done := func() {
				mu.Lock()
				defer mu.Unlock()
				running[key] = false
			}
			defer done()
			r = r.WithContext(context.WithValue(r.Context(), ranKey{}, done))
		}
		mu.Unlock()
		next.ServeHTTP(w, r)
	})
}

type ranKey struct{}

// ran notifies racing when the origin is done.
func ran(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if done, ok := r.Context().Value(ranKey{}).(func()); ok {
			defer done()
		}
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

// replaying changes the header of replays.
func replaying(change func(http.Header)) func(http.Handler) http.Handler {
	return answering(func(h http.Header, _ int) {
		if h.Get("Idempotent-Replayed") != "" {
			change(h)
		}
	})
}

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
		if strings.HasPrefix(r.RequestURI, "/") {
			r.RequestURI = strings.ReplaceAll(strings.ReplaceAll(r.RequestURI, "/./", "/"), "//", "/")
		}
		next.ServeHTTP(w, r)
	})
}

// hasty refuses a long key without a look at the body.
func hasty(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.Header.Get("Idempotency-Key")) > 257 {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// informing sends informational answers to old clients, which do not understand them.
func informing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMinor == 0 {
			w.WriteHeader(http.StatusEarlyHints)
		}
		next.ServeHTTP(w, r)
	})
}
