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

// TestCost: how many calls an Open and a lock take, as the pages of engines that are paid by the call
// say.
func TestCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &casstore.Memory{}
		var reads, writes, deletes atomic.Int64
		k := &kv{
			KV: m,
			get: func(ctx context.Context, name string) ([]byte, string, error) {
				reads.Add(1)
				return m.Get(ctx, name)
			},
			put: func(ctx context.Context, name string, value []byte, version string) (string, error) {
				writes.Add(1)
				return m.Put(ctx, name, value, version)
			},
			del: func(ctx context.Context, name, version string) error {
				deletes.Add(1)
				return m.Delete(ctx, name, version)
			},
		}
		cost := func(what string, want [3]int64, do func()) {
			t.Helper()
			reads.Store(0)
			writes.Store(0)
			deletes.Store(0)
			do()
			if got := [3]int64{reads.Load(), writes.Load(), deletes.Load()}; got != want {
				t.Errorf("%s takes %v reads, writes and deletes, want %v", what, got, want)
			}
		}
		lock := func(s *casstore.Store) {
			token := store.NewToken()
			claim(t, s, token, store.Try, time.Hour)
			testkit.Check(t, settle(t, s, store.Settlement{Token: token}))
		}
		var s *casstore.Store
		cost("Open", [3]int64{4, 10, 3}, func() { s = open(t, k, &casstore.Options{PruneEvery: -1}) })
		lock(s) // makes the clock
		cost("a lock", [3]int64{4, 2, 0}, func() { lock(s) })
		names, err := m.List(t.Context(), "k/", "", 1)
		testkit.Must(t, err)
		_, version, err := m.Get(t.Context(), names[0])
		testkit.Must(t, err)
		testkit.Check(t, m.Delete(t.Context(), names[0], version))
		cost("a lock of a new key", [3]int64{4, 2, 0}, func() { lock(s) })
	})
}

// TestCostOfAWaiter: what a process costs that waits for a key for a minute, with the tick of S3.
func TestCostOfAWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &casstore.Memory{}
		var reads, writes atomic.Int64
		k := &kv{
			KV: m,
			get: func(ctx context.Context, name string) ([]byte, string, error) {
				reads.Add(1)
				return m.Get(ctx, name)
			},
			put: func(ctx context.Context, name string, value []byte, version string) (string, error) {
				if strings.HasPrefix(name, "k/") {
					writes.Add(1)
				}
				return m.Put(ctx, name, value, version)
			},
		}
		o := &casstore.Options{Tick: time.Second, PruneEvery: -1}
		claim(t, open(t, m, o), store.NewToken(), store.Try, time.Hour)
		client, err := dibs.New(open(t, k, o), nil)
		testkit.Must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var waiter sync.WaitGroup
		waiter.Go(func() { _, _ = client.Acquire(ctx, key.Name, &dibs.AcquireOptions{Wait: time.Hour}) })
		time.Sleep(time.Minute)
		reads.Store(0)
		writes.Store(0)
		time.Sleep(time.Minute)
		if r, w := reads.Load(), writes.Load(); r > 400 || w > 6 {
			t.Errorf("%d reads and %d writes of the key in a minute", r, w)
		}
		cancel()
		waiter.Wait()
		testkit.Check(t, client.Close())
	})
}
