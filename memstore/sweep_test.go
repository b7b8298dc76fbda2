package memstore

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
)

// FuzzWheel puts entries in the wheel and looks for them, in passes that are interrupted
// anywhere. The wheel finds each entry when it is due: not before, and not late.
func FuzzWheel(f *testing.F) {
	for seed := range uint64(100) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 1))
		var w wheel
		w.init()
		var now instant
		waiting := map[*entry]bool{}
		var put []*entry
		for range 300 {
			now += instant(r.Int64N(int64(time.Second) << r.IntN(10)))
			for range r.IntN(5) {
				e := &entry{}
				w.put(e, now+instant(r.Int64N(int64(time.Second)<<r.IntN(12))))
				waiting[e] = true
				put = append(put, e)
			}
			if len(put) > 0 && r.IntN(4) == 0 {
				if e := put[len(put)-1-r.IntN(min(len(put), 16))]; waiting[e] {
					w.remove(e)
					delete(waiting, e)
				}
			}
			interrupted := r.IntN(2) == 0
			for {
				budget := 1 + r.IntN(4)
				e, all := w.look(now, &budget)
				if e != nil {
					if e.due > now || !waiting[e] {
						t.Fatalf("found at %v what is due at %v", now, e.due)
					}
					w.remove(e)
					delete(waiting, e)
				}
				if all || interrupted && r.IntN(4) == 0 {
					interrupted = !all
					break
				}
			}
			if turn := w.turn(now); (turn == never) != (len(waiting) == 0) || turn <= now {
				t.Fatalf("the next turn at %v is %v with %d waiting", now, turn, len(waiting))
			}
			for e := range waiting {
				if !interrupted && e.due <= now {
					t.Fatalf("not found at %v what is due at %v", now, e.due)
				}
			}
		}
	})
}

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
		if sh.count != 0 || sh.wheel.count != 0 || sh.wheel.used != [4]uint64{} || len(sh.buckets) != minBuckets {
			t.Fatalf("shard %d: %d entries, %d in the wheel, %d buckets", i, sh.count, sh.wheel.count, len(sh.buckets))
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
