package serve

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// refusing is a store that takes no writes, but answers looks.
type refusing struct{ *memstore.Store }

func (s *refusing) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	for _, c := range claims {
		if c.Mode != store.Look {
			return errors.New("the disk cannot be written")
		}
	}
	return s.Store.Claim(ctx, claims, answers)
}

// TestReadyStoreRefuses: a server whose store refuses claims is not ready, even if the store answers
// what changes nothing. A check leaves nothing in a store that works.
func TestReadyStoreRefuses(t *testing.T) {
	behind := inMemory(t)
	r := start(t, &refusing{behind}, nil)
	if got := r.do("GET", "/readyz", "", ""); got.status != http.StatusServiceUnavailable {
		t.Errorf("/readyz is %d %s", got.status, got.text)
	}
	r = start(t, behind, nil)
	if got := r.do("GET", "/readyz", "", ""); got.status != http.StatusOK {
		t.Errorf("/readyz is %d %s", got.status, got.text)
	}
	for e, err := range behind.List(t.Context(), store.Query{}) {
		t.Errorf("a check left %+v, %v", e, err)
	}
}

// TestReadyStoreAway: a server whose store does not answer is not ready, and is alive.
func TestReadyStoreAway(t *testing.T) {
	behind := &failing{Store: inMemory(t)}
	behind.away.Store(true)
	r := start(t, behind, nil)
	if got := r.do("GET", "/readyz", "", ""); got.status != http.StatusServiceUnavailable || got.text != "the store does not answer, or refuses claims\n" {
		t.Errorf("/readyz is %d %s", got.status, got.text)
	}
	if got := r.do("GET", "/healthz", "", ""); got.status != http.StatusOK {
		t.Errorf("/healthz is %d", got.status)
	}
}
