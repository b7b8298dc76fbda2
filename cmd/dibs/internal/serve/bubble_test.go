package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/httpstore"
	"github.com/dibs-go/dibs/stores/memstore"
)

// bubble is a server without a network, in a synctest bubble.
type bubble struct {
	http.Handler
	t *testing.T
}

// inBubble calls f in a bubble, with a server of the store.
func inBubble(t *testing.T, under func(t *testing.T) dibs.Store, f func(b *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Config{
			MaxBody: 1 << 20, MaxBodyMemory: 1 << 24, MaxCalls: 10, MaxWaiters: 10, StoreTimeout: time.Minute,
		}, under(t), Hooks{Version: "test", Metrics: func(*string) http.Handler { return http.NotFoundHandler() }, Log: slog.New(slog.DiscardHandler)})
		testkit.Must(t, err)
		defer s.unnotify()
		f(&bubble{s.Handler(), t})
	})
}

// call calls the server about "k".
func (b *bubble) call(verb, body string) *reply {
	b.t.Helper()
	r := httptest.NewRequestWithContext(b.t.Context(), "POST", "http://localhost/v1/"+verb, strings.NewReader(body))
	r.RemoteAddr = "127.0.0.1:1"
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	b.ServeHTTP(w, r)
	got := &reply{status: w.Code, text: w.Body.String()}
	testkit.Check(b.t, json.Unmarshal(w.Body.Bytes(), got))
	return got
}

func (b *bubble) claim(n int, more string) *reply {
	b.t.Helper()
	return b.call("claim", fmt.Sprintf(`{"claims":[{"key":"k","token":"%032x"%s}`, n, more))
}

func (b *bubble) settle(n int) *reply {
	b.t.Helper()
	return b.call("settle", fmt.Sprintf(`{"settlements":[{"key":"k","token":"%032x"}]}`, n))
}

// TestAPollKeepsItsPlace: a call that waits asks before its place ends, however short its place_ttl_ms is.
func TestAPollKeepsItsPlace(t *testing.T) {
	for _, placeTTL := range []int{3, 300, 1500, 10_000} {
		inBubble(t, func(t *testing.T) dibs.Store { return inMemory(t) }, func(b *bubble) {
			if got := b.claim(1, `,"ttl_ms":3600000}]`).state(); got != "granted" {
				b.t.Fatal(got)
			}
			answer := make(chan *reply, 1)
			go func() {
				answer <- b.claim(2, fmt.Sprintf(`,"mode":"queue","place_ttl_ms":%d}],"wait_ms":60000`, placeTTL))
			}()
			synctest.Wait()
			b.claim(3, `,"mode":"queue","place_ttl_ms":3600000}]`)
			time.Sleep(50 * time.Second)
			if len(answer) > 0 {
				b.t.Fatalf("after less than its wait it is answered %s", (<-answer).text)
			}
			b.settle(1)
			synctest.Wait()
			if got := (<-answer).state(); got != "granted" {
				b.t.Errorf("with a place_ttl_ms of %d it is answered %s", placeTTL, got)
			}
		})
	}
}

// counted is a store that counts its calls.
type counted struct {
	*memstore.Store
	calls atomic.Int64
}

func (s *counted) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	s.calls.Add(1)
	return s.Store.Claim(ctx, claims, answers)
}

// TestAPollAsksSeldom: how often a call that waits asks the store does not depend on its place_ttl_ms, nor
// on the lease in its way.
func TestAPollAsksSeldom(t *testing.T) {
	const wait = 10 * time.Second
	asks := func(ttl, placeTTL int, mode string) (n int64) {
		var s *counted
		inBubble(t, func(t *testing.T) dibs.Store { s = &counted{Store: inMemory(t)}; return s }, func(b *bubble) {
			hold := fmt.Sprintf(`,"ttl_ms":%d}]`, ttl)
			b.claim(1, hold)
			claims := int64(1)
			over := make(chan struct{})
			go func() {
				b.claim(2, fmt.Sprintf(`,"mode":%q,"place_ttl_ms":%d}],"wait_ms":%d`, mode, placeTTL, wait.Milliseconds()))
				close(over)
			}()
			synctest.Wait()
			for ended := false; !ended; {
				select {
				case <-over:
					ended = true
				case <-time.After(time.Duration(ttl) * time.Millisecond / 2):
					b.claim(1, hold) // again by the same token: the holder keeps it
					claims++
				}
			}
			n = s.calls.Load() - claims
		})
		return n
	}
	for _, mode := range []string{"queue", "look"} {
		// A look for the place and a claim of it, each half second, and both at the beginning.
		for _, placeTTL := range []int{1, 2, 30, 1499, 1500, 10_000} {
			if n, most := asks(60_000, placeTTL, mode), int64(2*(wait/backoff.Near+1)); n > most {
				t.Errorf("%s: with a place_ttl_ms of %d it asks %d times in %v; want %d at most", mode, placeTTL, n, wait, most)
			}
		}
		if n, most := asks(2, 1, mode), int64(2*(wait/minPoll+1)); n > most {
			t.Errorf("%s: for a lease of 2 ms that stays in its way it asks %d times in %v; want %d at most", mode, n, wait, most)
		}
	}
}

// slowStore is a store whose claims take until they may end, while it is armed.
type slowStore struct {
	dibs.Store
	armed   atomic.Bool
	may     chan struct{}
	settled atomic.Int64
}

func (s *slowStore) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	if s.armed.Load() {
		<-s.may
	}
	return s.Store.Claim(ctx, claims, answers)
}

func (s *slowStore) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	s.settled.Add(1)
	return s.Store.Settle(ctx, settlements, errs)
}

// TestASettlementWaitsForTheCallThatAsks: while a call that waits has a claim at the store, a
// settlement of its token waits. Otherwise the claim could come after it.
func TestASettlementWaitsForTheCallThatAsks(t *testing.T) {
	var s *slowStore
	inBubble(t, func(t *testing.T) dibs.Store { s = &slowStore{Store: inMemory(t), may: make(chan struct{})}; return s }, func(b *bubble) {
		b.claim(1, `,"ttl_ms":3600000}]`)
		answers := make(chan *reply, 2)
		for range 2 {
			go func() { answers <- b.claim(2, `,"mode":"queue","place_ttl_ms":60000}],"wait_ms":60000`) }()
		}
		synctest.Wait()
		s.armed.Store(true)
		time.Sleep(10 * time.Second) // until both calls have asked again
		synctest.Wait()
		go b.settle(2)
		synctest.Wait()
		if n := s.settled.Load(); n != 0 {
			b.t.Error("the store was told while the calls asked")
		}
		close(s.may)
		synctest.Wait()
		if n := s.settled.Load(); n != 1 || len(answers) != 2 {
			b.t.Errorf("afterwards the store was told %d times, and %d calls are answered", n, len(answers))
		}
		b.settle(1)
		if got := b.claim(3, "}]").state(); got != "granted" {
			b.t.Errorf("the next claim is %s", got)
		}
	})
}

// roundTripper sends requests to no network, so that time can be simulated.
type roundTripper func(r *http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestAClientWhoseFirstServersAreFrozen: the next server gets its calls in time.
func TestAClientWhoseFirstServersAreFrozen(t *testing.T) {
	for name, call := range map[string]func(context.Context, *dibs.Client) error{
		"Acquire": func(ctx context.Context, c *dibs.Client) error {
			l, err := c.Acquire(ctx, "k", nil)
			if err == nil {
				err = l.Release()
			}
			return err
		},
		"TryAcquire": func(ctx context.Context, c *dibs.Client) error {
			l, err := c.TryAcquire(ctx, "k", nil)
			if err == nil {
				err = l.Release()
			}
			return err
		},
		"Reserve": func(ctx context.Context, c *dibs.Client) error {
			_, _, err := c.Reserve(ctx, "k", time.Hour, nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) dibs.Store { return inMemory(t) }, func(b *bubble) {
				over, err := httpstore.Open("http://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", &httpstore.Options{Client: &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
					if r.URL.Port() != "3" {
						<-r.Context().Done()
						return nil, r.Context().Err()
					}
					w := httptest.NewRecorder()
					r = r.Clone(r.Context())
					r.RemoteAddr = "127.0.0.1:1"
					b.ServeHTTP(w, r)
					return w.Result(), nil
				})}})
				testkit.Must(b.t, err)
				defer over.Close()
				c, err := dibs.New(over, nil)
				testkit.Must(b.t, err)
				defer c.Close()
				testkit.Check(b.t, call(b.t.Context(), c))
			})
		})
	}
}
