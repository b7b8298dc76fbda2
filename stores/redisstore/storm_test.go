//go:build nightly

package redisstore

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/prove/wire"
	"github.com/dibs-go/dibs/store"
)

var seedFlag = flag.Uint64("seed", 0, "the seed of a storm; 0: a new one")

// seeded returns the seed of this storm, and the chance of each of its callers. A storm
// that fails says how to repeat it.
func seeded(t *testing.T) (seed uint64, of func(caller uint64) *rand.Rand) {
	t.Helper()
	if seed = *seedFlag; seed == 0 {
		seed = rand.Uint64()
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to repeat it: go test -race -tags nightly -run '^%s$' -args -seed %d", t.Name(), seed)
		}
	})
	return seed, func(caller uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, caller)) }
}

// TestCancelStorm: many callers give up at random times, on keys that are free and on
// keys that are held. The server keeps nothing of them.
func TestCancelStorm(t *testing.T) {
	seed, at := seeded(t)
	for name, where := range map[string]func(t *testing.T) (url string, servers []*servertest.RedisServer){
		"Redis": func(t *testing.T) (string, []*servertest.RedisServer) {
			server := servertest.Redis(t, nil)
			w := servertest.NewWire(t, server.Addr())
			w.Set(wire.Trouble{Delay: 2 * time.Millisecond}, nil) // there is a while to give up in
			return server.URLAt(w.Addr()), []*servertest.RedisServer{server}
		},
		"Cluster": func(t *testing.T) (string, []*servertest.RedisServer) {
			return sharedCluster().URL(), sharedCluster().Nodes()[:3]
		},
	} {
		t.Run(name, func(t *testing.T) {
			url, servers := where(t)
			const callers, rounds = 16, 30
			o := &Options{Prefix: testkit.Own()}
			s := open(t, url, o)
			busy := make([]store.Claim, 4)
			for i := range busy {
				busy[i] = lock(fmt.Sprint("busy ", i))
				mustGrant(t, s, busy[i])
			}
			c := newClient(t, open(t, url, o), &dibs.Options{Namespace: "test"})
			var granted, gaveUp atomic.Int64
			var calling sync.WaitGroup
			for caller := range callers {
				chance := at(uint64(caller))
				calling.Go(func() {
					for round := range rounds {
						k := fmt.Sprint("free ", caller, " ", round)
						if caller%2 == 0 {
							k = fmt.Sprint("busy ", caller/2%len(busy))
						}
						ctx, cancel := context.WithCancel(t.Context())
						// A busy machine needs longer to grant anything.
						most := []time.Duration{10 * time.Millisecond, 30 * time.Millisecond, 100 * time.Millisecond}[round%3]
						late := time.AfterFunc(time.Duration(chance.Int64N(int64(most))), cancel)
						if round == 0 {
							cancel() // before
						}
						lease, err := c.Acquire(ctx, k, nil)
						switch {
						case err == nil:
							granted.Add(1)
							if err := lease.Release(); err != nil && !errors.Is(err, store.ErrLost) {
								t.Error(err)
							}
						case errors.Is(err, context.Canceled):
							gaveUp.Add(1)
						default:
							t.Error(err)
						}
						late.Stop()
						cancel()
					}
				})
			}
			calling.Wait()
			t.Logf("seed %d: %d were granted and %d gave up", seed, granted.Load(), gaveUp.Load())
			left := func() (all []string) {
				for _, server := range servers {
					all = append(all, leftover(t, server, o.Prefix)...)
				}
				return all
			}
			testkit.Eventually(t, "only the held keys are left, without waiters", func() bool {
				names := 0
				for e, err := range s.List(t.Context(), store.Query{}) {
					testkit.Must(t, err)
					if e.Waiters+e.Reserved > 0 || e.Condition != store.ConditionHeld {
						return false
					}
					names++
				}
				return names == len(busy)
			})
			for _, c := range busy {
				mustSettle(t, s, c, store.Release)
			}
			testkit.Eventually(t, "nothing is left", func() bool { return len(left()) == 0 })
		})
	}
}

// TestForgetStorm: a server forgets its scripts again and again while clients work, as a
// server does that is restarted or takes over.
func TestForgetStorm(t *testing.T) {
	t.Run("Redis", func(t *testing.T) {
		server := servertest.Redis(t, nil)
		forgetScripts(t, server.URL(), []*servertest.RedisServer{server})
	})
	t.Run("Cluster", func(t *testing.T) {
		forgetScripts(t, sharedCluster().URL(), sharedCluster().Nodes()[:3])
	})
}

func forgetScripts(t *testing.T, url string, masters []*servertest.RedisServer) {
	const workers, rounds, keys = 8, 60, 3
	o := &Options{Prefix: testkit.Own()}
	var forgot atomic.Int64
	var working, forgetting sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for _, master := range masters {
		forgetting.Go(func() {
			conn, err := master.Dial()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			for ctx.Err() == nil {
				if _, err := conn.Do("SCRIPT", "FLUSH"); err != nil {
					t.Error(err)
					return
				}
				forgot.Add(1)
			}
		})
	}
	var inside [keys]int // each under its key's lock
	for range 2 {
		c := newClient(t, open(t, url, o), nil)
		for w := range workers / 2 {
			working.Go(func() {
				for round := range rounds {
					n := (w + round) % keys
					err := c.Do(ctx, fmt.Sprint("key ", n), func(context.Context) error {
						inside[n]++
						return nil
					})
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	working.Wait()
	cancel()
	forgetting.Wait()
	total := 0
	for _, n := range inside {
		total += n
	}
	if total != workers*rounds {
		t.Errorf("%d sections were run, want %d", total, workers*rounds)
	}
	t.Logf("%d sections, forgotten %d times", total, forgot.Load())
}

// TestDeafStorm: rounds of TestDeafAtRelease, also on a cluster.
func TestDeafStorm(t *testing.T) {
	t.Run("Redis", func(t *testing.T) {
		server := servertest.Redis(t, nil)
		endSubscriptions(t, server.URL(), []*servertest.RedisServer{server}, 12)
	})
	t.Run("Cluster", func(t *testing.T) {
		endSubscriptions(t, sharedCluster().URL(), sharedCluster().Nodes()[:3], 12)
	})
}
