package idempotency_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs/idempotency/retry"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// newTransport returns a Transport that sends over base.
func newTransport(t *testing.T, base http.RoundTripper, o retry.Options) *retry.Transport {
	t.Helper()
	o.Base = base
	transport, err := retry.New(&o)
	testkit.Must(t, err)
	return transport
}

// newClient returns an HTTP client with a Transport that is quick to retry.
func newClient(t *testing.T, base *http.Transport) *http.Client {
	t.Helper()
	if base == nil {
		base = &http.Transport{}
	}
	t.Cleanup(base.CloseIdleConnections)
	return &http.Client{Transport: newTransport(t, base, retry.Options{
		MaxTries: 8, Backoff: 5 * time.Millisecond, MaxBackoff: 2 * time.Second, Budget: 1,
	})}
}

// charge posts and returns what came back.
func charge(client *http.Client, url string) (status int, body string, replayed bool, err error) {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url, strings.NewReader("amount=700"))
	if err != nil {
		return 0, "", false, err
	}
	r.Host = "api.example"
	res, err := client.Do(r)
	if err != nil {
		return 0, "", false, err
	}
	text, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	return res.StatusCode, string(text), res.Header.Get("Idempotent-Replayed") == "true", err
}

// TestTransportOverABadNetwork: connections break before the request arrives, while
// it runs, and after it ran, before and in the middle of the answer's head. The
// guarded handler runs once for each request all the same.
func TestTransportOverABadNetwork(t *testing.T) {
	g := newRig(t, nil, nil)
	var mu sync.Mutex
	breaks := map[string]int{} // by key: how often it broke
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		key := r.Header.Get("Idempotency-Key")
		n := breaks[key]
		breaks[key]++
		mu.Unlock()
		switch n {
		case 0: // nothing happened
			panic(http.ErrAbortHandler)
		case 1: // it ran, and the answer was lost
			g.h.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		case 2: // it broke off in the head
			g.h.ServeHTTP(httptest.NewRecorder(), r)
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 201 Cre"))
			_ = conn.Close()
		default:
			g.h.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	client := newClient(t, nil)
	const requests = 20
	var all sync.WaitGroup
	for range requests {
		all.Go(func() {
			status, body, replayed, err := charge(client, server.URL)
			if err != nil || status != 201 || !replayed || !strings.HasPrefix(body, "charge ") {
				t.Errorf("%d, %q, replayed %v, %v", status, body, replayed, err)
			}
		})
	}
	all.Wait()
	g.ran(requests)
}
