package memstore

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// A waiter is woken at the instant when the lease or place in front of it expires, although no
// call comes any more. A key without a place is forgotten.
func TestTimePassesByItself(t *testing.T) {
	const over, lasts = 10 * time.Second, 24 * time.Hour
	for name, first := range map[string]store.Claim{
		"lease":        {Mode: store.Try, TTL: over},
		"waiter":       {Mode: store.Queue, PlaceTTL: over},
		"place":        {Mode: store.Reserve, PlaceTTL: over},
		"Grace":        {Mode: store.Reserve, PlaceTTL: lasts, Grace: over},
		"leased place": {Mode: store.Try, TTL: over, From: store.NewToken()},
	} {
		for _, waits := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s, err := New(nil)
					testkit.Must(t, err)
					defer s.Close()
					var mu sync.Mutex
					woken := map[store.Token]time.Time{}
					defer s.Notify(func(token store.Token, _ store.Answer) {
						mu.Lock()
						defer mu.Unlock()
						woken[token] = time.Now()
					})()
					claim := func(c store.Claim) store.Claim {
						c.Key, c.Permits, c.Weight = store.Key{Name: "k"}, 1, 1
						if c.Token.IsZero() {
							c.Token = store.NewToken()
						}
						c.TTL = max(c.TTL, time.Millisecond)
						testkit.Must(t, s.Claim(t.Context(), []store.Claim{c}, make([]store.Answer, 1)))
						return c
					}
					start := time.Now()
					switch name {
					case "waiter":
						holder := claim(store.Claim{Mode: store.Try, TTL: lasts})
						claim(first)
						x := store.Settlement{Key: holder.Key, Token: holder.Token}
						testkit.Must(t, s.Settle(t.Context(), []store.Settlement{x}, make([]error, 1)))
					case "leased place":
						claim(store.Claim{Mode: store.Reserve, Token: first.From, PlaceTTL: over})
						claim(first)
					default:
						claim(first)
					}
					next := store.Claim{Mode: store.Try}
					if waits {
						next = store.Claim{Mode: store.Queue, PlaceTTL: lasts}
					}
					next = claim(next)
					time.Sleep(over + time.Minute)
					synctest.Wait()
					mu.Lock()
					defer mu.Unlock()
					if at, ok := woken[next.Token]; waits && (!ok || at.Sub(start) != over) {
						t.Errorf("the waiter was woken: %v, after %v; want it after %v", ok, at.Sub(start), over)
					}
					if n := s.keys.Load(); !waits && n != 0 && first.TTL == 0 {
						t.Errorf("%d keys are left", n)
					}
				})
			})
		}
	}
}
