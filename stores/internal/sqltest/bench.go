package sqltest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// Cycles has goroutines make b.N cycles together, and reports the cycles per second.
func Cycles(b *testing.B, goroutines int, cycle func(g, i int64) error) {
	b.Helper()
	b.ReportAllocs()
	b.ResetTimer()
	var n atomic.Int64
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
				if err := cycle(int64(g), i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "cycles/s")
}

// Each measures with each number of goroutines.
func Each(b *testing.B, measure func(b *testing.B, goroutines int), numbers ...int) {
	for _, goroutines := range numbers {
		b.Run(fmt.Sprint(goroutines), func(b *testing.B) { measure(b, goroutines) })
	}
}

// AcquireRelease measures a claim and its settlement by several goroutines at once: each cycle
// with a new key, or each goroutine with a key of its own.
func AcquireRelease(b *testing.B, open func(b *testing.B) Store) {
	for _, keys := range []string{"new", "own"} {
		b.Run(keys, func(b *testing.B) {
			Each(b, func(b *testing.B, goroutines int) {
				client := Client(b, open(b), nil)
				Cycles(b, goroutines, func(g, i int64) error {
					key := fmt.Sprintf("goroutine %d", g)
					if keys == "new" {
						key = fmt.Sprintf("goroutine %d, cycle %d", g, i)
					}
					lease, err := client.Acquire(context.Background(), key, nil)
					if err != nil {
						return err
					}
					return lease.Release()
				})
			}, 1, 64, 512)
		})
	}
}

// OneByOne measures the same with one call for each element, to show the gain of batching.
func OneByOne(b *testing.B, open func(b *testing.B, connections int) Store) {
	Each(b, func(b *testing.B, goroutines int) {
		s, ctx := open(b, goroutines), context.Background()
		Cycles(b, goroutines, func(g, i int64) error {
			k, t := store.Key{Name: fmt.Sprintf("goroutine %d, cycle %d", g, i)}, store.NewToken()
			answers, errs := make([]store.Answer, 1), make([]error, 1)
			err := s.Claim(ctx, []store.Claim{{Key: k, Token: t, TTL: time.Minute, Permits: 1, Weight: 1}}, answers)
			if err == nil {
				err = s.Settle(ctx, []store.Settlement{{Key: k, Token: t}}, errs)
			}
			return err
		})
	}, 1, 64)
}

// Once measures answers that are kept, each under another key, or with replay the same answer
// again and again.
func Once(b *testing.B, open func(b *testing.B) Store, replay bool) {
	Each(b, func(b *testing.B, goroutines int) {
		client := Client(b, open(b), nil)
		answer := strings.Repeat("answer", 100)
		run := func(g, i int64) error {
			if replay {
				g, i = 0, 0
			}
			_, err := dibs.Once(context.Background(), client, fmt.Sprintf("once %d %d", g, i), nil, func(context.Context) (string, error) {
				return answer, nil
			})
			return err
		}
		testkit.Must(b, run(0, 0))
		Cycles(b, goroutines, run)
	}, 1, 64)
}

// HandOver measures the time from a release in one process until a waiter in another process
// holds the key. The waiter has waited for that long before. The stores share tables.
func HandOver(b *testing.B, held time.Duration, stores [2]Store) {
	clients := []*dibs.Client{Client(b, stores[0], nil), Client(b, stores[1], nil)}
	ctx := context.Background()
	lease, err := clients[0].Acquire(ctx, "k", nil)
	testkit.Must(b, err)
	took := make([]time.Duration, 0, b.N)
	for i := range b.N {
		got := make(chan *dibs.Lease)
		go func() {
			l, err := clients[(i+1)%2].Acquire(ctx, "k", nil)
			testkit.Check(b, err)
			got <- l
		}()
		AwaitQueue(b, stores[0], "k")
		time.Sleep(held) // so that the lease and the queue are settled; the measured time begins later
		start := time.Now()
		go func() { _ = lease.Release() }()
		next := <-got
		took = append(took, time.Since(start))
		lease = next
	}
	testkit.Must(b, lease.Release())
	Quantiles(b, took)
}

// Quantiles reports the median and the 99th percentile.
func Quantiles(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
