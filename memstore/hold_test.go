package memstore

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
)

// A place that is in the way ends with its Hold though nobody asks any more: who
// waits behind it is woken in that moment, and a key that has nobody is forgotten.
func TestHoldEndsByItself(t *testing.T) {
	const hold, stands = 10 * time.Second, 24 * time.Hour
	for name, next := range map[string]dibs.Mode{"waiting": dibs.Queue, "reserved": dibs.Reserve, "nobody": dibs.Look} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := New(nil)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				var mu sync.Mutex
				woken := map[dibs.Token]time.Time{}
				defer s.Notify(func(token dibs.Token) {
					mu.Lock()
					defer mu.Unlock()
					woken[token] = time.Now()
				})()
				claim := func(mode dibs.Mode, hold time.Duration) dibs.Token {
					c := dibs.Claim{
						Key: dibs.Key{Name: "k"}, Mode: mode, Token: dibs.NewToken(),
						TTL: time.Minute, Place: stands, Hold: hold, Permits: 1,
					}
					answers := make([]dibs.Answer, 1)
					if err := s.Claim(t.Context(), []dibs.Claim{c}, answers); err != nil || answers[0].State != dibs.Held {
						t.Fatalf("mode %d: %+v, %v", mode, answers[0], err)
					}
					return c.Token
				}
				claim(dibs.Reserve, hold)
				time.Sleep(time.Hour)
				start := time.Now()
				behind := claim(next, 0)
				if next != dibs.Queue { // to queue is to ask
					claim(dibs.Try, 0)
				}
				time.Sleep(hold + time.Minute)
				synctest.Wait()
				mu.Lock()
				defer mu.Unlock()
				switch at, ok := woken[behind]; {
				case next == dibs.Look:
				case !ok:
					t.Error("who is behind was not woken")
				case at.Sub(start) != hold:
					t.Errorf("who is behind was woken after %v, want %v", at.Sub(start), hold)
				}
				if n := s.keys.Load(); (n != 0) != (next == dibs.Reserve) {
					t.Errorf("%d keys are left", n)
				}
			})
		})
	}
}
