package memstore

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
)

// fill claims and keeps n keys, each with a retention.
func fill(t *testing.T, s *Store, n int, retention func(i int) time.Duration) {
	for i := range n {
		key := dibs.Key{Namespace: "sweep", Name: fmt.Sprint(i)}
		token := dibs.NewToken()
		claims := []dibs.Claim{{Key: key, Token: token, TTL: time.Minute, Permits: 1, Weight: 1}}
		x := []dibs.Settlement{{Key: key, Token: token}}
		if r := retention(i); r > 0 {
			x[0].Outcome, x[0].Data, x[0].Retention = dibs.Keep, []byte("data"), r
		}
		errs := make([]error, 1)
		if err := s.Claim(t.Context(), claims, make([]dibs.Answer, 1)); err != nil {
			t.Fatal(err)
		}
		if err := s.Settle(t.Context(), x, errs); err != nil || errs[0] != nil {
			t.Fatal(err, errs[0])
		}
	}
}

// empty fails the test unless the store is as large as a new one and its timer
// is not set.
func empty(t *testing.T, s *Store) {
	t.Helper()
	if k, b := s.keys.Load(), s.bytes.Load(); k != 0 || b != 0 {
		t.Errorf("%d keys and %d bytes are left", k, b)
	}
	if at := s.sweeper.at.Load(); at != math.MaxInt64 {
		t.Errorf("the sweep is set for %v", time.Duration(at))
	}
	for i := range s.shards {
		sh := &s.shards[i]
		if sh.count != 0 || sh.soonest != never || len(sh.buckets) != minBuckets {
			t.Fatalf("shard %d: %d entries, something ends at %v, %d buckets", i, sh.count, sh.soonest, len(sh.buckets))
		}
	}
}

func TestSweepLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(nil)
		if err != nil {
			t.Fatal(err)
		}
		fill(t, s, 20_000, func(i int) time.Duration {
			return time.Duration(i%7) * time.Duration(i) * 5 * time.Millisecond
		})
		time.Sleep(700*time.Second + 2*sweepRare)
		synctest.Wait()
		empty(t, s)
	})
}

func TestPruneCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(nil)
		if err != nil {
			t.Fatal(err)
		}
		s.sweeper.stop() // this test is about what is removed on request
		fill(t, s, 1000, func(int) time.Duration { return time.Second })
		time.Sleep(time.Second)
		for _, step := range []struct{ limit, want int }{{1, 1}, {300, 300}, {0, 699}, {0, 0}} {
			if n, err := s.Prune(t.Context(), step.limit); n != step.want || err != nil {
				t.Errorf("Prune(%d) is %d, %v; want %d", step.limit, n, err, step.want)
			}
		}
	})
}

// A list goes on where it was although the tables grow and shrink meanwhile.
func TestListWhileTablesChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		fill(t, s, 20_000, func(i int) time.Duration {
			if i%10 == 0 {
				return time.Hour
			}
			return time.Second
		})
		time.Sleep(time.Second) // nine of ten are dead, and removed below
		seen := map[dibs.Key]int{}
		for e, err := range s.List(t.Context(), dibs.Query{}) {
			if err != nil {
				t.Fatal(err)
			}
			if seen[e.Key]++; len(seen)%50 == 0 {
				if _, err := s.Prune(t.Context(), 1000); err != nil {
					t.Fatal(err)
				}
			}
			if e.Condition != dibs.ConditionDone || seen[e.Key] > 1 {
				t.Fatalf("%v, listed %d times", e, seen[e.Key])
			}
		}
		if len(seen) != 2000 {
			t.Errorf("%d keys are listed, not 2000", len(seen))
		}
	})
}
