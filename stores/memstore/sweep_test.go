package memstore

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// fill claims and keeps n keys, each with a retention.
func fill(t *testing.T, s *Store, n int, retention func(i int) time.Duration) {
	for i := range n {
		key := store.Key{Namespace: "sweep", Name: fmt.Sprint(i)}
		token := store.NewToken()
		claims := []store.Claim{{Key: key, Token: token, TTL: time.Minute, Permits: 1, Weight: 1}}
		x := []store.Settlement{{Key: key, Token: token}}
		if r := retention(i); r > 0 {
			x[0].Outcome, x[0].Data, x[0].Retention = store.Keep, []byte("data"), r
		}
		errs := make([]error, 1)
		testkit.Must(t, s.Claim(t.Context(), claims, make([]store.Answer, 1)))
		if err := s.Settle(t.Context(), x, errs); err != nil || errs[0] != nil {
			t.Fatal(err, errs[0])
		}
	}
}

// empty fails the test unless the store is empty and its timer is not set.
func empty(t *testing.T, s *Store) {
	t.Helper()
	if k, b := s.keys.Load(), s.bytes.Load(); k != 0 || b != 0 {
		t.Errorf("%d keys and %d bytes are left", k, b)
	}
	if s.sweeper.set.Load() {
		t.Error("the timer is set")
	}
	for i := range s.shards {
		sh := &s.shards[i]
		if len(sh.entries) != 0 || sh.soonest != never {
			t.Fatalf("shard %d: %d entries, something ends at %v", i, len(sh.entries), sh.soonest)
		}
	}
}

func TestSweepLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(nil)
		testkit.Must(t, err)
		fill(t, s, 20_000, func(i int) time.Duration {
			return time.Duration(i%7) * time.Duration(i) * 5 * time.Millisecond
		})
		time.Sleep(700*time.Second + 2*sweepEvery)
		synctest.Wait()
		empty(t, s)
	})
}

func TestPruneCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(nil)
		testkit.Must(t, err)
		s.sweeper.stop() // because the test counts what Prune removes
		fill(t, s, 1000, func(int) time.Duration { return time.Second })
		time.Sleep(time.Second)
		for _, step := range []struct{ limit, want int }{{1, 1}, {300, 300}, {0, 699}, {0, 0}} {
			if n, err := s.Prune(t.Context(), step.limit); n != step.want || err != nil {
				t.Errorf("Prune(%d) is %d, %v; want %d", step.limit, n, err, step.want)
			}
		}
	})
}

// TestListWhileKeysEnd: List lists each live key once, although others end meanwhile.
func TestListWhileKeysEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(nil)
		testkit.Must(t, err)
		defer s.Close()
		fill(t, s, 20_000, func(i int) time.Duration {
			if i%10 == 0 {
				return time.Hour
			}
			return time.Second
		})
		time.Sleep(time.Second) // nine of ten have expired, and are removed below
		seen := map[store.Key]int{}
		for e, err := range s.List(t.Context(), store.Query{}) {
			testkit.Must(t, err)
			if seen[e.Key]++; len(seen)%50 == 0 {
				if _, err := s.Prune(t.Context(), 1000); err != nil {
					t.Fatal(err)
				}
			}
			if e.Condition != store.ConditionDone || seen[e.Key] > 1 {
				t.Fatalf("%v, listed %d times", e, seen[e.Key])
			}
		}
		if len(seen) != 2000 {
			t.Errorf("%d keys are listed, not 2000", len(seen))
		}
	})
}

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

// A call that was under way when the store was closed finds nothing of the keys that were held
// then.
func TestCallAfterClose(t *testing.T) {
	s, err := New(nil)
	testkit.Must(t, err)
	c := store.Claim{Key: store.Key{Name: "k"}, Token: store.NewToken(), TTL: time.Hour, Permits: 1, Weight: 1}
	grant := func() (a store.Answer) {
		c.Token = store.NewToken()
		_ = s.on(c.Key, c.Token, func(sh *shard, now int64) error { return sh.claim(&c, &a, now) }) // Claim, after it has looked
		return a
	}
	if a := grant(); a.State != store.Granted {
		t.Fatalf("%+v", a)
	}
	s.Close()
	if a := grant(); a.State != store.Granted || a.Attempt != 1 {
		t.Errorf("after the close: %+v", a)
	}
}

// A sweep that is under way when the store is closed sets no timer again.
func TestCloseEndsTheTimer(t *testing.T) {
	s, err := New(nil)
	testkit.Must(t, err)
	c := store.Claim{Key: store.Key{Name: "k"}, Token: store.NewToken(), TTL: 1 << 40, Permits: 1, Weight: 1}
	testkit.Must(t, s.Claim(t.Context(), []store.Claim{c}, make([]store.Answer, 1)))
	s.Close()
	s.sweeper.set.Store(false) // this and the next line are what the sweep does
	s.sweeper.start(s)
	if s.sweeper.timer.Stop() {
		t.Error("the timer is set")
	}
}

// Kept returns how many keys and bytes the store has counted.
func (s *Store) Kept() (keys, bytes int64) { return s.keys.Load(), s.bytes.Load() }
