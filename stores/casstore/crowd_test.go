package casstore_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/casstore"
)

// slow returns a KV whose calls take that long there, and as long back. writes counts those of keys;
// nil: nobody wants to know.
func slow(m *casstore.Memory, way time.Duration, writes *atomic.Int64) casstore.KV {
	return &kv{
		KV: m,
		get: func(ctx context.Context, name string) ([]byte, string, error) {
			time.Sleep(way)
			defer time.Sleep(way)
			return m.Get(ctx, name)
		},
		put: func(ctx context.Context, name string, value []byte, version string) (string, error) {
			if writes != nil && strings.HasPrefix(name, "k/") {
				writes.Add(1)
			}
			time.Sleep(way)
			defer time.Sleep(way)
			return m.Put(ctx, name, value, version)
		},
	}
}

// TestManyWaiters: forty processes wait for one key in a distant engine, and each gets its turn. Most
// questions of waiters write nothing, or they would be in the way of each other and of the holder.
func TestManyWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const processes = 40
		m := &casstore.Memory{}
		var writes atomic.Int64
		var all sync.WaitGroup
		for i := range processes {
			client, err := dibs.New(open(t, slow(m, 30*time.Millisecond, &writes), &casstore.Options{Tick: time.Second}), nil)
			testkit.Must(t, err)
			all.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				lease, err := client.Acquire(t.Context(), "deploy", &dibs.AcquireOptions{Wait: time.Hour})
				if err != nil {
					t.Errorf("process %d: %v", i, err)
					return
				}
				time.Sleep(2 * time.Second)
				testkit.Check(t, lease.Release())
				testkit.Check(t, client.Close())
			})
		}
		all.Wait()
		if n := writes.Load(); n > 50*processes {
			t.Errorf("%d writes of the key for %d turns", n, processes)
		}
	})
}

// TestSlowEngine: calls take far longer than a tick, and the store works all the same.
func TestSlowEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &casstore.Memory{}
		var all sync.WaitGroup
		for range 3 {
			s := open(t, slow(m, 300*time.Millisecond, nil), &casstore.Options{Tick: 100 * time.Millisecond, PruneEvery: -1})
			all.Go(func() {
				for range 10 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					token := store.NewToken()
					k := store.Key{Name: token.ID()}
					a, errs := make([]store.Answer, 1), make([]error, 1)
					err := s.Claim(ctx, []store.Claim{{Key: k, Token: token, TTL: time.Minute, Permits: 1, Weight: 1}}, a)
					if err != nil || a[0].State != store.Granted {
						t.Errorf("a claim is answered %+v, %v", a[0], err)
						return
					}
					testkit.Check(t, s.Settle(ctx, []store.Settlement{{Key: k, Token: token}}, errs))
					testkit.Check(t, errs[0])
				}
			})
		}
		all.Wait()
	})
}
