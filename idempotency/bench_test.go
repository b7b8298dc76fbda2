package idempotency_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

// answerCreated is the handler that everything is measured against.
var answerCreated = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header()["Content-Type"] = jsonType
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(chargeBody)
})

var (
	jsonType   = []string{"application/json"}
	chargeBody = []byte(`{"id":"ch_1","amount":1200,"currency":"eur","status":"succeeded"}`)
)

// noWriter is a ResponseWriter that costs nothing.
type noWriter struct{ h http.Header }

func (w *noWriter) Header() http.Header             { return w.h }
func (w *noWriter) WriteHeader(int)                 {}
func (w *noWriter) Write(p []byte) (int, error)     { return len(p), nil }
func (w *noWriter) SetReadDeadline(time.Time) error { return nil }

func benchMiddleware(tb testing.TB, o *idempotency.Options) http.Handler {
	tb.Helper()
	store, err := memstore.New(nil)
	testkit.Must(tb, err)
	client, err := dibs.New(store, nil)
	testkit.Must(tb, err)
	tb.Cleanup(func() { _ = client.Close() })
	m, err := idempotency.New(client, o)
	testkit.Must(tb, err)
	return m.Wrap(answerCreated)
}

// requestFor returns a request, and a function that makes it new again.
func requestFor() (r *http.Request, again func(key []string)) {
	const text = `{"amount":1200,"currency":"eur"}`
	body := strings.NewReader(text)
	r = httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/charges", nil)
	r.Body = io.NopCloser(body)
	r.ContentLength = int64(len(text))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer token")
	return r, func(key []string) {
		body.Reset(text)
		r.Header["Idempotency-Key"] = key
	}
}

// keysFor makes keys ahead, so that making them is not measured.
func keysFor(n int) [][]string {
	keys := make([][]string, n)
	for i := range keys {
		keys[i] = []string{`"` + "key-" + strconv.Itoa(i) + `"`}
	}
	return keys
}

func BenchmarkServe(b *testing.B) {
	run := func(b *testing.B, h http.Handler, key func(i int) []string) {
		r, again := requestFor()
		w := &noWriter{h: make(http.Header)}
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			again(key(i))
			i++
			clear(w.h)
			h.ServeHTTP(w, r)
		}
	}
	keys := keysFor(1 << 20)
	b.Run("bare", func(b *testing.B) {
		run(b, answerCreated, func(i int) []string { return keys[0] })
	})
	b.Run("first", func(b *testing.B) {
		run(b, benchMiddleware(b, nil), func(i int) []string { return keys[i%len(keys)] })
	})
	b.Run("replay", func(b *testing.B) {
		run(b, benchMiddleware(b, nil), func(i int) []string { return keys[0] })
	})
	encrypted := &idempotency.Options{KeyRing: ringOf(b, "new")}
	b.Run("first, encrypted", func(b *testing.B) {
		run(b, benchMiddleware(b, encrypted), func(i int) []string { return keys[i%len(keys)] })
	})
	b.Run("replay, encrypted", func(b *testing.B) {
		run(b, benchMiddleware(b, encrypted), func(i int) []string { return keys[0] })
	})
}

// BenchmarkServer measures through a real server and real connections.
func BenchmarkServer(b *testing.B) {
	run := func(b *testing.B, h http.Handler) {
		server := httptest.NewServer(h)
		defer server.Close()
		transport := &http.Transport{MaxIdleConnsPerHost: 64}
		defer transport.CloseIdleConnections()
		client := &http.Client{Transport: transport}
		b.SetParallelism(8)
		b.ResetTimer()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, server.URL+"/charges", strings.NewReader(`{"amount":1200}`))
				if err != nil {
					b.Error(err)
					return
				}
				r.Header.Set("Idempotency-Key", `"one"`)
				resp, err := client.Do(r)
				if err != nil {
					b.Error(err)
					return
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusCreated {
					// All but the first few are replays; those few may conflict.
					if resp.StatusCode != http.StatusConflict {
						b.Errorf("%v, %v", resp.Status, err)
						return
					}
				}
				_ = resp.Body.Close()
			}
		})
	}
	b.Run("bare", func(b *testing.B) { run(b, answerCreated) })
	b.Run("replay", func(b *testing.B) { run(b, benchMiddleware(b, nil)) })
}
