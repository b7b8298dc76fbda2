package retry_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

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

// TestRetryAfterByTheServersClock: a date is read against the answer's own Date, whatever the
// client's clock says.
func TestRetryAfterByTheServersClock(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, 0, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			sent := 0
			tr, err := retry.New(&retry.Options{Base: tripper(func(*http.Request) (*http.Response, error) {
				if sent++; sent > 1 {
					return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}, nil
				}
				now := time.Now().Add(ahead).UTC()
				h := http.Header{"Date": {now.Format(http.TimeFormat)}, "Retry-After": {now.Add(7 * time.Second).Format(http.TimeFormat)}}
				return &http.Response{StatusCode: 503, Header: h, Body: http.NoBody}, nil
			})})
			testkit.Must(t, err)
			r := testkit.Request(t.Context(), t, http.MethodPost, "http://example.com/", nil)
			began := time.Now()
			res, err := tr.RoundTrip(r)
			if took := time.Since(began); err != nil || res.StatusCode != 200 || took < 7*time.Second || took > 8*time.Second {
				t.Errorf("a server that is %v ahead: %v, %v, after %v", ahead, res, err, took)
			}
		})
	}
}
