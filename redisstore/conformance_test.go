package redisstore

import (
	"path"
	"slices"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/storetest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	standalone := func(o servertest.RedisOptions) func(testing.TB) *storetest.Backend {
		return func(t testing.TB) *storetest.Backend {
			server := servertest.Redis(t, &o)
			return &storetest.Backend{
				Open:    func() dibs.Store { return open(t, server.URL(), nil) },
				Restart: func() { server.Kill(); server.Restart() },
				Wipe:    func() { server.Must("FLUSHALL") },
			}
		}
	}
	for name, backend := range map[string]func(testing.TB) *storetest.Backend{
		"Redis":    standalone(servertest.RedisOptions{Persistence: servertest.AOF}),
		"Valkey":   standalone(servertest.RedisOptions{Valkey: true, Persistence: servertest.AOF}),
		"Sentinel": onSentinels,
		"Cluster":  onCluster,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it mostly waits
			storetest.Run(t, &storetest.Harness{
				New: backend,
				Lacks: map[storetest.Feature]string{
					storetest.Skew:   "it reads no clock of its process; see TestNoClock",
					storetest.Pruner: "the server forgets by itself what has ended",
				},
			})
		})
	}
}

// onSentinels returns a backend on the sentinels that all share. A restart is a
// failover, and those who want one have sentinels of their own.
func onSentinels(t testing.TB) *storetest.Backend {
	own := restarts(t)
	sentinels := sharedSentinels()
	if own {
		sentinels = servertest.RedisSentinel(t, nil)
	}
	prefix := ownPrefix()
	wiped := func() { wipe(t, sentinels.Master(), prefix) }
	if !own {
		t.Cleanup(wiped) // what is left slows others' lists
	}
	return &storetest.Backend{
		Open: func() dibs.Store { return open(t, sentinels.URL(), &Options{Prefix: prefix}) },
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

// onCluster returns a backend on the cluster that all share. Those who restart
// theirs have their own.
func onCluster(t testing.TB) *storetest.Backend {
	own := restarts(t)
	cluster := sharedCluster()
	if own {
		cluster = servertest.RedisCluster(t, &servertest.ClusterOptions{
			Replicas: -1, Redis: &servertest.RedisOptions{Persistence: servertest.AOF},
		})
	}
	prefix := ownPrefix()
	wiped := func() {
		for _, node := range cluster.Nodes() {
			if node.Info("role") == "master" {
				wipe(t, node, prefix)
			}
		}
	}
	if !own {
		t.Cleanup(wiped)
	}
	return &storetest.Backend{
		Open: func() dibs.Store { return open(t, cluster.URL(), &Options{Prefix: prefix}) },
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

// restarts reports whether the property that is tried restarts its backend.
func restarts(t testing.TB) bool {
	return slices.ContainsFunc(storetest.Properties(), func(p storetest.Property) bool {
		return p.Name == path.Base(t.Name()) && slices.Contains(p.Needs, storetest.Restart)
	})
}

// wipe has a server lose all that is under a prefix.
func wipe(t testing.TB, server *servertest.RedisServer, prefix string) {
	conn, err := server.Dial()
	if err != nil {
		t.Errorf("wiping: %v", err)
		return
	}
	defer conn.Close()
	for _, name := range names(server, prefix) {
		if _, err := conn.Do("DEL", name); err != nil {
			t.Errorf("wiping: %v", err)
			return
		}
	}
}
