package sqlitestore

import (
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// BenchmarkClaimSettle measures a durable claim and its durable settlement, each
// a call of one element, by that many goroutines at once. One goroutine is the
// floor that group commit is measured against.
func BenchmarkClaimSettle(b *testing.B) {
	for _, outcome := range []store.Outcome{store.Release, store.Keep} {
		for _, n := range []int{1, 64, 512} {
			name := map[store.Outcome]string{store.Release: "release", store.Keep: "keep"}[outcome]
			b.Run(fmt.Sprintf("%s/goroutines=%d", name, n), func(b *testing.B) {
				s := benchStore(b)
				data := make([]byte, 500)
				concurrently(b, n, func(i int64) {
					c := store.Claim{
						Key:   store.Key{Namespace: "bench", Name: "key-" + strconv.FormatInt(i, 10)},
						Token: store.NewToken(), TTL: time.Minute, Permits: 1, Weight: 1,
					}
					x := store.Settlement{Key: c.Key, Token: c.Token, Outcome: outcome}
					if outcome == store.Keep {
						c.MaxAge = store.AnyAge
						x.Data, x.Retention = data, time.Hour
					}
					mustGrant(b, s, c)
					mustSettle(b, s, x)
				})
			})
		}
	}
}

// BenchmarkReplay measures claims that a record answers.
func BenchmarkReplay(b *testing.B) {
	const keys = 1000
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprintf("goroutines=%d", n), func(b *testing.B) {
			s := benchStore(b)
			key := func(i int64) store.Key { return store.Key{Name: "key-" + strconv.FormatInt(i%keys, 10)} }
			for i := range int64(keys) {
				token := store.NewToken()
				mustGrant(b, s, store.Claim{Key: key(i), Token: token, TTL: time.Minute, Permits: 1, Weight: 1})
				mustSettle(b, s, store.Settlement{
					Key: key(i), Token: token, Outcome: store.Keep, Data: make([]byte, 500), Retention: time.Hour,
				})
			}
			b.ResetTimer()
			concurrently(b, n, func(i int64) {
				c := store.Claim{Key: key(i), Token: store.NewToken(), TTL: time.Minute, Permits: 1, Weight: 1, MaxAge: store.AnyAge}
				if a := claimOne(b, s, c); a.State != store.Done || len(a.Record.Data) != 500 {
					b.Errorf("the claim was answered %+v", a)
				}
			})
		})
	}
}

// BenchmarkBatch measures calls of many elements, as a client makes them.
func BenchmarkBatch(b *testing.B) {
	for _, n := range []int{64, 512} {
		b.Run(fmt.Sprintf("elements=%d", n), func(b *testing.B) {
			s := benchStore(b)
			claims, answers := make([]store.Claim, n), make([]store.Answer, n)
			settlements, errs := make([]store.Settlement, n), make([]error, n)
			serial := 0
			for b.Loop() {
				for i := range claims {
					serial++
					claims[i] = store.Claim{
						Key:   store.Key{Name: "key-" + strconv.Itoa(serial)},
						Token: store.NewToken(), TTL: time.Minute, Permits: 1, Weight: 1,
					}
					settlements[i] = store.Settlement{Key: claims[i].Key, Token: claims[i].Token}
				}
				clear(answers)
				testkit.Must(b, s.Claim(b.Context(), claims, answers))
				testkit.Must(b, s.Settle(b.Context(), settlements, errs))
				if answers[n-1].State != store.Granted || errs[n-1] != nil {
					b.Fatal(answers[n-1], errs[n-1])
				}
			}
			b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "pairs/s")
		})
	}
}

// BenchmarkLongQueue measures asking again with 10,000 waiters on one key.
func BenchmarkLongQueue(b *testing.B) {
	s := benchStore(b)
	key := store.Key{Name: "popular"}
	claims := make([]store.Claim, 10_001)
	for i := range claims {
		claims[i] = store.Claim{
			Key: key, Token: store.NewToken(), Mode: store.Queue, TTL: time.Hour, PlaceTTL: time.Hour, Permits: 1, Weight: 1,
		}
	}
	testkit.Must(b, s.Claim(b.Context(), claims, make([]store.Answer, len(claims))))
	i := 0
	for b.Loop() {
		i++
		if a := claimOne(b, s, claims[1+i%10_000]); a.State != store.Held {
			b.Fatalf("the claim was answered %+v", a)
		}
	}
}

func benchStore(b *testing.B) *Store {
	s, err := Open(filepath.Join(b.TempDir(), "dibs.db"), nil)
	testkit.Must(b, err)
	b.Cleanup(func() { testkit.Check(b, s.Close()) })
	return s
}

// concurrently runs b.N times f in n goroutines.
func concurrently(b *testing.B, n int, f func(i int64)) {
	var next atomic.Int64
	var running sync.WaitGroup
	for range n {
		running.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				f(i)
			}
		})
	}
	running.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}

func claimOne(t testing.TB, s *Store, c store.Claim) store.Answer {
	answers := [1]store.Answer{}
	if err := s.Claim(t.Context(), []store.Claim{c}, answers[:]); err != nil {
		t.Errorf("claim: %v", err)
	}
	return answers[0]
}

func mustGrant(t testing.TB, s *Store, c store.Claim) store.Answer {
	a := claimOne(t, s, c)
	if a.State != store.Granted {
		t.Errorf("the claim was answered %+v", a)
	}
	return a
}

func settleOne(t testing.TB, s *Store, x store.Settlement) error {
	errs := [1]error{}
	if err := s.Settle(t.Context(), []store.Settlement{x}, errs[:]); err != nil {
		t.Errorf("settle: %v", err)
	}
	return errs[0]
}

func mustSettle(t testing.TB, s *Store, x store.Settlement) {
	if err := settleOne(t, s, x); err != nil {
		t.Errorf("settle: %v", err)
	}
}
