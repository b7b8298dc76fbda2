package main

import (
	"net/http/httptest"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency/conform"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

// TestConforms: the middleware has the profile of Stripe's documentation.
func TestConforms(t *testing.T) {
	store, err := memstore.New(nil)
	testkit.Must(t, err)
	defer store.Close()
	client, err := dibs.New(store, nil)
	testkit.Must(t, err)
	defer client.Close()
	guard, err := guardLikeStripe(client)
	testkit.Must(t, err)
	origin := conform.NewOrigin()
	server := httptest.NewServer(guard.Wrap(origin))
	defer server.Close()
	report, err := conform.Run(t.Context(), &conform.Options{
		Target: server.URL, Origin: origin, Profile: conform.Stripe, Timeout: 4 * testkit.Limit,
		Skip: []string{"request-framed-twice"}, // which is up to net/http
	})
	testkit.Must(t, err)
	for i := range report.Results {
		if report.Results[i].Outcome == conform.Failed {
			t.Error(report.Results[i].Line())
		}
	}
	if !report.Conforms() {
		t.Error(report.Summary())
	}
}
