//go:build nightly

package redisstore

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/prove/wire"
)

// TestFailover is TestLostData with servers that are replaced by a replica that lags.
func TestFailover(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*testing.T) losing{
		"LaggingReplicaPromoted": laggingReplica,
		"Sentinel":               laggingSentinel,
		"Cluster":                laggingCluster,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			loseUnderLoad(t, prepare(t))
		})
	}
}

// laggingReplica promotes a replica that received nothing for a while, and has the
// clients' connections lead there.
func laggingReplica(t *testing.T) losing {
	master, replica := servertest.Redis(t, nil), servertest.Redis(t, nil)
	w := servertest.NewWire(t, master.Addr())
	_, port, err := net.SplitHostPort(w.Addr())
	testkit.Must(t, err)
	replica.Must("REPLICAOF", "127.0.0.1", port)
	testkit.Eventually(t, "the replica is in step", func() bool { return replica.Info("master_link_status") == "up" })
	var where atomic.Pointer[string]
	addr := master.Addr()
	where.Store(&addr)
	connect := func() *Store {
		client, err := rueidis.NewClient(rueidis.ClientOption{
			InitAddress: []string{"the.one"}, DisableCache: true, ForceSingleClient: true,
			DialCtxFn: func(ctx context.Context, _ string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
				return d.DialContext(ctx, "tcp", *where.Load())
			},
		})
		testkit.Must(t, err)
		t.Cleanup(client.Close)
		s, err := New(client, nil)
		testkit.Must(t, err)
		t.Cleanup(func() { s.Close() })
		return s
	}
	return losing{open: connect, lag: func() { w.Set(wire.Trouble{Hold: true}, nil) }, lose: func() {
		knowsNothing(t, []*servertest.RedisServer{replica})
		replica.Must("REPLICAOF", "NO", "ONE")
		addr := replica.Addr()
		where.Store(&addr)
		master.Kill()
	}}
}

// laggingSentinel has sentinels promote a replica that received nothing for a
// while, because the master pauses, connections and all.
func laggingSentinel(t *testing.T) losing {
	sentinels := servertest.RedisSentinel(t, &servertest.SentinelOptions{DownAfter: time.Second})
	master := sentinels.Master()
	return losing{
		open: func() *Store { return open(t, sentinels.URL(), nil) },
		lag:  func() { stopReplication(t, master, sentinels.Servers()) },
		lose: func() {
			knowsNothing(t, sentinels.Servers()[1:])
			master.Pause()
			sentinels.AwaitMaster(master)
		},
	}
}

// laggingCluster has all replicas of a cluster promoted, which received nothing
// for a while.
func laggingCluster(t *testing.T) losing {
	cluster := servertest.RedisCluster(t, &servertest.ClusterOptions{NodeTimeout: time.Minute})
	masters, replicas := cluster.Nodes()[:3], cluster.Nodes()[3:]
	return losing{
		open: func() *Store { return open(t, cluster.URL(), nil) },
		lag: func() {
			for _, master := range masters {
				stopReplication(t, master, replicas)
			}
		},
		lose: func() {
			knowsNothing(t, replicas)
			for _, replica := range replicas {
				replica.Must("CLUSTER", "FAILOVER", "TAKEOVER")
			}
			for i, master := range masters {
				cluster.AwaitMaster(fmt.Sprintf("{%s}", slotTags[i]), master)
			}
			for _, master := range masters {
				master.Kill()
			}
		},
	}
}

// slotTags are in the slots of the first, the second and the third of three
// masters.
var slotTags = [...]string{"b", "c", "a"}

// stopReplication makes replicas unable to follow their master, as a password does that was
// changed on one side only.
func stopReplication(t *testing.T, master *servertest.RedisServer, all []*servertest.RedisServer) {
	t.Helper()
	_, port, err := net.SplitHostPort(master.Addr())
	testkit.Must(t, err)
	for _, replica := range all {
		if replica.Info("master_port") != port {
			continue
		}
		replica.Must("CONFIG", "SET", "masterauth", "wrong")
		master.Must("CLIENT", "KILL", "TYPE", "replica")
		testkit.Eventually(t, "the replica is cut off", func() bool {
			return replica.Info("master_link_status") == "down" && !strings.Contains(master.Info("connected_slaves"), "1")
		})
	}
}

// knowsNothing fails the test when a replica does not lag.
func knowsNothing(t *testing.T, replicas []*servertest.RedisServer) {
	t.Helper()
	for _, replica := range replicas {
		if got := names(replica, "dibs"); len(got) > 0 {
			t.Fatalf("the replica at %s does not lag: it has %q", replica.Addr(), got)
		}
	}
}
