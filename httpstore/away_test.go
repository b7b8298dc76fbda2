package httpstore

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestServersAway: if no server answers, a list and a version are errors that say why, once.
func TestServersAway(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	stopping := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"title":"The store does not answer"}`))
	}))
	defer stopping.Close()
	for url, want := range map[string]string{
		gone.URL:     "refused",
		stopping.URL: "The store does not answer (503)",
		gone.URL + "," + strings.TrimPrefix(stopping.URL, "http://"): "The store does not answer (503)",
		stopping.URL + "," + strings.TrimPrefix(gone.URL, "http://"): "refused",
	} {
		s, err := Open(url, nil)
		testkit.Must(t, err)
		defer s.Close()
		check := func(what string, err error) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "httpstore: ") != 1 {
				t.Errorf("%s from %s: the error is %v; want one that says %q", what, url, err, want)
			}
		}
		_, err = s.Version(t.Context())
		check("the version", err)
		for _, err := range s.List(t.Context(), store.Query{}) {
			check("the list", err)
		}
	}
}

// TestAnOrderIsNotRepeated: an order that a server got and did not answer is an error, and the next
// order goes to another server. An order that could not be sent goes there at once.
func TestAnOrderIsNotRepeated(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer silent.Close()
	orders := 0
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		orders++
		_, _ = w.Write([]byte(`{"done":1}`))
	}))
	defer other.Close()
	s, err := Open(strings.Join([]string{gone.URL, strings.TrimPrefix(silent.URL, "http://"), strings.TrimPrefix(other.URL, "http://")}, ","), nil)
	testkit.Must(t, err)
	defer s.Close()
	key := store.Key{Name: "k"}
	if _, err := s.Forget(t.Context(), key); err == nil || orders != 0 {
		t.Errorf("the first order: %v, and %d arrived at the other server", err, orders)
	}
	if done, err := s.Forget(t.Context(), key); !done || err != nil {
		t.Errorf("the second order: %v, %v", done, err)
	}
}

// TestAServerThatStandsStill: a call that it does not answer in time fails, and the next call goes to
// another server.
func TestAServerThatStandsStill(t *testing.T) {
	still := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // until then the server does not see that the client is gone
		<-r.Context().Done()
	}))
	defer still.Close()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"answers":[{}]}`))
	}))
	defer other.Close()
	s, err := Open(still.URL+","+strings.TrimPrefix(other.URL, "http://"), nil)
	testkit.Must(t, err)
	defer s.Close()
	renewals := []store.Renewal{{Key: store.Key{Name: "k"}, Token: store.NewToken(), TTL: time.Second}}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Renew(ctx, renewals, make([]error, 1)); err == nil {
		t.Error("it was answered")
	}
	if err := s.Renew(t.Context(), renewals, make([]error, 1)); err != nil {
		t.Error(err)
	}
}
