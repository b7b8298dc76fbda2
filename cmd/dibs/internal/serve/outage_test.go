package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
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

// TestCallsWithSeveralElementsAreObserved: a call of the store is told and logged in the same way whether it
// has one element or several, in each verb: an element that the store did not carry out is the store's
// fault, and one that is the caller's is not.
func TestCallsWithSeveralElementsAreObserved(t *testing.T) {
	for _, n := range []int{1, 3} {
		for verb, body := range map[string]string{"claim": `{"claims":[%s]}`, "renew": `{"renewals":[%s]}`, "settle": `{"settlements":[%s]}`} {
			under := &partial{Store: inMemory(t)}
			told := &told{}
			r := start(t, under, nil)
			r.server.hooks.StoreCall = told.hook
			elements := make([]string, n)
			for i := range elements {
				elements[i] = fmt.Sprintf(`{"key":"k%d","token":"%032x"}`, i, i+1)
				if verb == "settle" {
					elements[i] = fmt.Sprintf(`{"key":"k%d","token":"%032x","outcome":"undo"}`, i, i+1)
				}
			}
			text := fmt.Sprintf(body, strings.Join(elements, ","))
			r.do("POST", "/v1/"+verb, "", text)
			under.fails.Store(true)
			r.do("POST", "/v1/"+verb, "", text)
			under.fails.Store(false)
			r.do("POST", "/v1/"+verb, "", text)
			got := told.of(verb)
			if len(got) != 3 || got[0].Size != n || got[0].Err != nil || got[1].Err == nil || got[2].Err != nil {
				t.Errorf("%s of %d is told as %+v", verb, n, got)
			}
			if log := r.log.String(); strings.Count(log, "the store fails") != 1 || strings.Count(log, "the store answers again") != 1 {
				t.Errorf("%s of %d: the log has %s", verb, n, log)
			}
		}
	}
}

// partial is a store that does not carry out the last element of a call while fails is true.
type partial struct {
	*memstore.Store
	fails atomic.Bool
}

var errPartial = errors.New("not enough replicas have it")

func (s *partial) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	err := s.Store.Claim(ctx, claims, answers)
	if s.fails.Load() {
		answers[len(answers)-1] = store.Answer{Err: errPartial}
	}
	return err
}

func (s *partial) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	err := s.Store.Renew(ctx, renewals, errs)
	if s.fails.Load() {
		errs[len(errs)-1] = errPartial
	}
	return err
}

func (s *partial) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	err := s.Store.Settle(ctx, settlements, errs)
	if s.fails.Load() {
		errs[len(errs)-1] = errPartial
	}
	return err
}

// told are the calls of the store that a server tells of.
type told struct {
	mu    sync.Mutex
	calls []dibs.StoreCall
}

func (l *told) hook(c dibs.StoreCall) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, c)
}

// of returns the calls of a verb.
func (l *told) of(verb string) (some []dibs.StoreCall) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.calls {
		if c.Verb == verb {
			some = append(some, c)
		}
	}
	return some
}

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

// TestManyLargeRecords: records that the server takes one by one are also stored if they are settled
// at once. A record that is too large for the server fails alone.
func TestManyLargeRecords(t *testing.T) {
	r := start(t, inMemory(t), nil)
	over, err := httpstore.Open("http://"+r.Listener.Addr().String(), nil)
	testkit.Must(t, err)
	defer over.Close()
	const n, large = 16, 5
	claims, settlements := make([]store.Claim, n), make([]store.Settlement, n)
	for i := range claims {
		key, token, data := dibs.Key{Name: string(rune('a' + i))}, store.NewToken(), make([]byte, 1<<20)
		if i == large {
			data = make([]byte, 13<<20)
		}
		claims[i] = store.Claim{Key: key, Token: token, TTL: time.Minute, Permits: 1, Weight: 1}
		settlements[i] = store.Settlement{Key: key, Token: token, Outcome: store.Keep, Data: data, Retention: time.Minute}
	}
	testkit.Must(t, over.Claim(t.Context(), claims, make([]store.Answer, n)))
	errs := make([]error, n)
	testkit.Must(t, over.Settle(t.Context(), settlements, errs))
	for i, err := range errs {
		if errors.Is(err, dibs.ErrTooLarge) != (i == large) || i != large && err != nil {
			t.Errorf("record %d: %v", i, err)
		}
	}
}

// relaying is a store that wants to know whether its waiters may ask elsewhere.
type relaying struct {
	dibs.Store
	t        *testing.T
	relays   bool
	notifies bool
}

func (s *relaying) Relay() {
	if s.relays = true; s.notifies {
		s.t.Error("the store is told after the server listens")
	}
}

func (s *relaying) Notify(func(store.Token, store.Answer)) func() {
	s.notifies = true
	return func() {}
}

// TestAServerRelays: the server tells the store that a waiter may ask elsewhere. What the store does
// then is in storetest, and TestAServerEndsUnderAWaiter of the program has real servers.
func TestAServerRelays(t *testing.T) {
	s := &relaying{Store: inMemory(t), t: t}
	start(t, s, nil)
	if !s.relays {
		t.Error("the store is not told")
	}
}
