//go:build nightly

package redisstore

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestShardHangs: a master of a cluster that does not answer affects only calls to it: leases on other masters are renewed, and claims there granted.
func TestShardHangs(t *testing.T) {
	cluster := servertest.RedisCluster(t, &servertest.ClusterOptions{NodeTimeout: time.Minute})
	s := open(t, cluster.URL(), nil)
	c := newClient(t, s, &dibs.Options{Namespace: "test", TTL: 10 * time.Second})
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
		testkit.Must(t, err)
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
	cycles := 0
	for ; held[3].Err() == nil; cycles++ {
		lease, err := c.Acquire(t.Context(), elsewhere[3+cycles%7], nil)
		if err != nil {
			t.Fatalf("a claim of another server's key: %v", err)
		}
		if err := lease.Release(); err != nil {
			t.Errorf("a release of another server's key: %v", err)
		}
	}
	// Each would take stallLimit if it waited for the server that hangs, and takes a
	// thousandth of that if it does not.
	if cycles < 10 {
		t.Errorf("in the time of a lease there were %d claims of other servers' keys", cycles)
	}
	cancel()
	asking.Wait()
	hung.Continue()
	for _, lease := range held[:3] {
		if err := lease.Err(); err != nil {
			t.Errorf("the lease of another server's key: %v", err)
		}
		testkit.Check(t, lease.Release())
	}
}
