//go:build nightly

package redisstore

import (
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/product"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storetest"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// sharedValkey is sharedRedis, with Valkey.
var sharedValkey = sync.OnceValue(func() *servertest.RedisServer {
	return servertest.Redis(scope, &servertest.RedisOptions{Valkey: true})
})

func TestConformanceOfModes(t *testing.T) {
	t.Parallel()
	for name, subject := range map[string]func(testing.TB, time.Duration) *storetest.Subject{
		"Valkey":   standalone(sharedValkey, servertest.RedisOptions{Valkey: true, Persistence: servertest.AOF}),
		"Sentinel": onSentinels,
		"Cluster":  onCluster,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it mostly waits
			conform(t, subject)
		})
	}
}

// onSentinels returns a backend on the sentinels that all share. A restart is a
// failover; tests of failovers have their own sentinels.
func onSentinels(t testing.TB, turn time.Duration) *storetest.Subject {
	own := storetest.Restarts(t)
	var sentinels *servertest.Sentinels
	if own {
		sentinels = servertest.RedisSentinel(t, nil)
	} else {
		sentinels = sharedSentinels()
	}
	o := &Options{Prefix: testkit.Own(), pushedTTL: turn}
	wiped := func() { wipe(t, sentinels.Master(), o.Prefix) }
	if !own {
		t.Cleanup(wiped) // what is left slows others' lists
	}
	return &storetest.Subject{
		Open: func() store.Store { return open(t, sentinels.URL(), o) },
		Wipe: wiped,
		Restart: func() {
			if !own {
				t.Fatal("the sentinels are not this property's own")
			}
			sentinels.Await() // what is not on the replica yet is lost
			master := sentinels.Master()
			master.Kill()
			sentinels.AwaitMaster(master)
			master.Restart()
		},
	}
}

// onCluster returns a backend on the cluster that all share. Tests that restart
// theirs have their own.
func onCluster(t testing.TB, turn time.Duration) *storetest.Subject {
	own := storetest.Restarts(t)
	var cluster *servertest.Cluster
	if own {
		cluster = servertest.RedisCluster(t, &servertest.ClusterOptions{
			Replicas: -1, Redis: &servertest.RedisOptions{Persistence: servertest.AOF},
		})
	} else {
		cluster = sharedCluster()
	}
	o := &Options{Prefix: testkit.Own(), pushedTTL: turn}
	wiped := func() {
		for _, node := range cluster.Nodes() {
			if node.Info("role") == "master" {
				wipe(t, node, o.Prefix)
			}
		}
	}
	if !own {
		t.Cleanup(wiped)
	}
	return &storetest.Subject{
		Open: func() store.Store { return open(t, cluster.URL(), o) },
		Wipe: wiped,
		Restart: func() {
			if !own {
				t.Fatal("the cluster is not this property's own")
			}
			for _, node := range cluster.Nodes() {
				node.Kill()
			}
			for _, node := range cluster.Nodes() {
				node.Restart()
			}
			cluster.Await()
		},
	}
}

// TestProductValkey: Valkey is known by what it says itself.
func TestProductValkey(t *testing.T) {
	t.Parallel()
	s := open(t, sharedValkey().URL(), nil)
	sqltest.FindsProduct(t, s, "", "")
	servers, err := s.servers(t.Context())
	testkit.Must(t, err)
	met := product.Redis.Meet(servers[0].info).Products
	if len(met) == 0 || met[len(met)-1].Name != "Valkey" {
		t.Errorf("it is %+v", met)
	}
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
