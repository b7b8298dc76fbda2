package memstore

import (
	"fmt"
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
