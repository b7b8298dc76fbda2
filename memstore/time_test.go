package memstore

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
)

// A waiter is woken at the instant when the lease or place in front of it expires, although no
// call comes any more. A key without a place is forgotten.
func TestTimePassesByItself(t *testing.T) {
	const over, lasts = 10 * time.Second, 24 * time.Hour
	for name, first := range map[string]dibs.Claim{
		"lease":        {Mode: dibs.Try, TTL: over},
		"waiter":       {Mode: dibs.Queue, Stay: over},
		"place":        {Mode: dibs.Reserve, Stay: over},
		"Hold":         {Mode: dibs.Reserve, Stay: lasts, Hold: over},
		"leased place": {Mode: dibs.Try, TTL: over, From: dibs.NewToken()},
	} {
		for _, waits := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s, err := New(nil)
					if err != nil {
						t.Fatal(err)
					}
					defer s.Close()
					var mu sync.Mutex
					woken := map[dibs.Token]time.Time{}
					defer s.Notify(func(token dibs.Token, _ dibs.Answer) {
						mu.Lock()
						defer mu.Unlock()
						woken[token] = time.Now()
					})()
					claim := func(c dibs.Claim) dibs.Claim {
						c.Key, c.Permits, c.Weight = dibs.Key{Name: "k"}, 1, 1
						if c.Token.IsZero() {
							c.Token = dibs.NewToken()
						}
						c.TTL = max(c.TTL, time.Millisecond)
						if err := s.Claim(t.Context(), []dibs.Claim{c}, make([]dibs.Answer, 1)); err != nil {
							t.Fatal(err)
						}
						return c
					}
					start := time.Now()
					switch name {
					case "waiter":
						holder := claim(dibs.Claim{Mode: dibs.Try, TTL: lasts})
						claim(first)
						x := dibs.Settlement{Key: holder.Key, Token: holder.Token}
						if err := s.Settle(t.Context(), []dibs.Settlement{x}, make([]error, 1)); err != nil {
							t.Fatal(err)
						}
					case "leased place":
						claim(dibs.Claim{Mode: dibs.Reserve, Token: first.From, Stay: over})
						claim(first)
					default:
						claim(first)
					}
					next := dibs.Claim{Mode: dibs.Try}
					if waits {
						next = dibs.Claim{Mode: dibs.Queue, Stay: lasts}
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
