//go:build nightly

package redisstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

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
