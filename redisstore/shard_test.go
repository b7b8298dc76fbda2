//go:build nightly

package redisstore

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// TestShardHangs: a master of a cluster that says nothing costs those who ask it,
// and nobody else: leases on other masters are renewed, and claims there granted.
func TestShardHangs(t *testing.T) {
	cluster := servertest.RedisCluster(t, &servertest.ClusterOptions{NodeTimeout: time.Minute})
	s := open(t, cluster.URL(), nil)
	c := newClient(t, s, &dibs.Options{Namespace: "test", TTL: 3 * time.Second, Timeout: 3 * time.Second})
	hung := cluster.MasterOf(s.names.state(key("k0")))
	var there, elsewhere []string // names of keys, by whether the server is theirs
	for i := 0; len(there) < 3 || len(elsewhere) < 10; i++ {
		name := fmt.Sprint("k", i)
		if cluster.MasterOf(s.names.state(key(name))) == hung {
			there = append(there, name)
		} else {
			elsewhere = append(elsewhere, name)
		}
	}
	var held []*dibs.Lease
	for _, name := range append(elsewhere[:3:3], there[0]) {
		lease, err := c.Acquire(t.Context(), name, nil)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, lease)
	}
	hung.Pause()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asking sync.WaitGroup
	for _, name := range there[1:3] {
		asking.Go(func() {
			for ctx.Err() == nil {
				if lease, err := c.Acquire(ctx, name, nil); err == nil {
					t.Errorf("%s was granted by a server that hangs", name)
					lease.Release()
				}
			}
		})
	}
	for i := 0; held[3].Err() == nil; i++ {
		start := time.Now()
		lease, err := c.Acquire(t.Context(), elsewhere[3+i%7], nil)
		if err != nil {
			t.Fatalf("a claim of another server's key: %v", err)
		}
		if err := lease.Release(); err != nil {
			t.Errorf("a release of another server's key: %v", err)
		}
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("another server's key took %v", d)
		}
	}
	cancel()
	asking.Wait()
	hung.Continue()
	for _, lease := range held[:3] {
		if err := lease.Err(); err != nil {
			t.Errorf("the lease of another server's key: %v", err)
		}
		if err := lease.Release(); err != nil {
			t.Error(err)
		}
	}
}
