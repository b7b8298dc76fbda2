package idempotency_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/dibs-go/dibs/idempotency"
)

// TestTransportDoesNotRetryInVain: what cannot be another answer is not asked for again.
func TestTransportDoesNotRetryInVain(t *testing.T) {
	for name, test := range map[string]struct {
		url    string
		header http.Header
		want   int
	}{
		"a replay that says come back later": {"http://a", http.Header{"Retry-After": {"1"}, "Idempotent-Replayed": {"true"}}, 1},
		"an answer that says come back":      {"http://a", http.Header{"Retry-After": {"1"}}, 5},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			tr, err := idempotency.NewTransport(&idempotency.TransportOptions{Base: tripper(func(r *http.Request) (*http.Response, error) {
				n++
				return &http.Response{StatusCode: 409, Header: test.header, Body: http.NoBody, Request: r}, nil
			})})
			if err != nil {
				t.Fatal(err)
			}
			r, _ := http.NewRequest("POST", test.url, nil)
			res, err := tr.RoundTrip(r)
			if err != nil || res.StatusCode != 409 || n != test.want {
				t.Errorf("%s: sent %d times, want %d; %v", name, n, test.want, err)
			}
		})
	}
}

// TestTransportAndUnknownSchemes: a scheme that nothing speaks is not tried again.
func TestTransportAndUnknownSchemes(t *testing.T) {
	for _, scheme := range []string{"foo", ""} {
		n := 0
		tr, err := idempotency.NewTransport(&idempotency.TransportOptions{Base: tripper(func(r *http.Request) (*http.Response, error) {
			n++
			return http.DefaultTransport.RoundTrip(r)
		})})
		if err != nil {
			t.Fatal(err)
		}
		r, _ := http.NewRequest("POST", scheme+"://a", nil)
		if r == nil {
			r, _ = http.NewRequest("POST", "http://a", nil)
			r.URL.Scheme = scheme
		}
		if _, err := tr.RoundTrip(r); err == nil || n != 1 {
			t.Errorf("%q: tried %d times: %v", scheme, n, err)
		}
	}
}

// TestTransportRemovesAnEmptyKey: our own server takes what our own client sends, whatever
// an application left in the header.
func TestTransportRemovesAnEmptyKey(t *testing.T) {
	g := newRig(t, nil, nil)
	for _, name := range []string{"X-Idempotency-Key", "Idempotency-Key"} {
		tr, err := idempotency.NewTransport(&idempotency.TransportOptions{Base: tripper(func(r *http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			g.h.ServeHTTP(w, r)
			return w.Result(), nil
		})})
		if err != nil {
			t.Fatal(err)
		}
		r, _ := http.NewRequest("POST", "http://a", strings.NewReader("x"))
		r.Header.Set(name, "")
		res, err := tr.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		if body, _ := io.ReadAll(res.Body); res.StatusCode != 201 {
			t.Errorf("an empty %s: %d %s", name, res.StatusCode, body)
		}
	}
	g.ran(2)
}
