package serve

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/errtype"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/httpstore"
	"github.com/dibs-go/dibs/stores/memstore"
)

// failing is a store that does not answer while away is true.
type failing struct {
	*memstore.Store
	away atomic.Bool
}

func (s *failing) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	if s.away.Load() {
		return errors.New("the network is down")
	}
	return s.Store.Claim(ctx, claims, answers)
}

// TestStoreAway: while the store of a server is away, many calls leave one line, and one more when
// it answers. A program over the server learns what is wrong.
func TestStoreAway(t *testing.T) {
	behind := &failing{Store: inMemory(t)}
	r := start(t, behind, nil)
	locked := start(t, inMemory(t), func(c *Config) { c.Tokens = tokensFile(t, credentialLine("app", "t", "-", "use")) })
	gone := start(t, inMemory(t), nil)
	gone.Close()
	claim := func(r *rig) error {
		t.Helper()
		over, err := httpstore.Open("http://"+r.Listener.Addr().String(), nil)
		testkit.Must(t, err)
		defer over.Close()
		return over.Claim(t.Context(), []store.Claim{{Key: dibs.Key{Name: "k"}, Token: store.NewToken(), TTL: time.Minute, Permits: 1, Weight: 1}}, make([]store.Answer, 1))
	}
	behind.away.Store(true)
	for range 3 {
		if err := claim(r); errtype.Of(err) != "unavailable" {
			t.Errorf("the store is away: %v", err)
		}
	}
	behind.away.Store(false)
	testkit.Check(t, claim(r))
	if err := claim(locked); errtype.Of(err) != "unauthorized" {
		t.Errorf("without a token: %v", err)
	}
	if err := claim(gone); errtype.Of(err) != "unreachable" {
		t.Errorf("the server is gone: %v", err)
	}
	log := r.log.String()
	if strings.Count(log, "the store fails") != 1 || strings.Count(log, "the store answers again") != 1 || !strings.Contains(log, "calls=2") {
		t.Errorf("the log has %s", log)
	}
}

// unreplicated is a store that carries settlements out, and does not answer that they are done.
type unreplicated struct{ *memstore.Store }

func (s unreplicated) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	err := s.Store.Settle(ctx, settlements, errs)
	for i := range errs {
		errs[i] = errors.New("not enough replicas have it")
	}
	return err
}

// TestASettlementWithoutADefiniteAnswer: the API has no element that may or may not have been done, so
// the call is answered like one that the store did not answer. What no store accepts is still an
// element's error.
func TestASettlementWithoutADefiniteAnswer(t *testing.T) {
	r := start(t, unreplicated{inMemory(t)}, nil)
	const settle = `{"settlements":[{"key":"k","token":"0123456789abcdef0123456789abcdef"}]}`
	if got := r.do("POST", "/v1/settle", "", settle); got.status != 503 || !strings.HasSuffix(got.Type, "#store-unavailable") {
		t.Errorf("got %d: %s", got.status, got.text)
	}
	invalid := strings.Replace(settle, `}]`, `,"outcome":"keep","retention_ms":0}]`, 1)
	if got := r.do("POST", "/v1/settle", "", invalid); got.status != 200 || got.state() != "invalid" {
		t.Errorf("got %d: %s", got.status, got.text)
	}
}
