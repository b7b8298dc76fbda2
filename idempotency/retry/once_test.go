package retry_test

import (
	"net/http"
	"testing"

	"github.com/dibs-go/dibs/idempotency/retry"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestTransportSendsOnceWhatCannotBeSent: a request that HTTP cannot carry is refused at once.
func TestTransportSendsOnceWhatCannotBeSent(t *testing.T) {
	for name, change := range map[string]func(*http.Request){
		"a value with a line break": func(r *http.Request) { r.Header["X-A"] = []string{"a\nb"} },
		"a name with a space":       func(r *http.Request) { r.Header["X A"] = []string{"a"} },
		"a method with a space":     func(r *http.Request) { r.Method = "PO ST" },
		"a trailer with a NUL":      func(r *http.Request) { r.Trailer = http.Header{"X-A": {"a\x00"}} },
		"no host":                   func(r *http.Request) { r.URL.Host = "" },
	} {
		sent := 0
		tr, err := retry.New(&retry.Options{Base: tripper(func(r *http.Request) (*http.Response, error) {
			sent++
			return http.DefaultTransport.RoundTrip(r)
		})})
		testkit.Must(t, err)
		r := testkit.Request(t.Context(), t, http.MethodPost, "http://127.0.0.1:1/", nil)
		change(r)
		if _, err := tr.RoundTrip(r); err == nil || sent != 1 {
			t.Errorf("%s: sent %d times, %v", name, sent, err)
		}
	}
}
