package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// losing is a way in which a server loses what it knew.
type losing struct {
	open func() *Store
	ttl  time.Duration
	slow time.Duration // how long it may take to notice that there is another server
	lag  func()        // what is granted from here on gets lost
	lose func()        // returns when there is a server again
}

func TestLostData(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*testing.T) losing{
		"Flushed": func(t *testing.T) losing {
			server := servertest.Redis(t, nil)
			return losing{open: func() *Store { return open(t, server.URL(), nil) }, ttl: 6 * time.Second, lag: func() {}, lose: func() { server.Must("FLUSHALL") }}
		},
		"Restarted": func(t *testing.T) losing {
			server := servertest.Redis(t, nil)
			return losing{open: func() *Store { return open(t, server.URL(), nil) }, ttl: 6 * time.Second, lag: func() {}, lose: func() {
				server.Kill()
				server.Restart()
			}}
		},
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

// loseUnderLoad has some hold keys and some wait for them as the server loses
// its data.
func loseUnderLoad(t *testing.T, l losing) {
	const keys, waiters = 5, 4
	holders := newClient(t, l.open(), &dibs.Options{TTL: l.ttl})
	l.lag()
	held := make([]*dibs.Lease, keys)
	for i := range held {
		var err error
		if held[i], err = holders.Acquire(t.Context(), fmt.Sprint("key ", i), nil); err != nil {
			t.Fatal(err)
		}
	}

	var waiting sync.WaitGroup
	var wait sync.Mutex // guards what follows
	lost := make([]time.Time, keys)
	for i, lease := range held {
		waiting.Go(func() {
			<-lease.Context().Done()
			wait.Lock()
			defer wait.Unlock()
			lost[i] = time.Now()
		})
	}
	fences := make([][]uint64, keys)
	granted := make([]time.Time, keys)
	for p := range 2 {
		store := l.open()
		client := newClient(t, store, &dibs.Options{TTL: l.ttl})
		for i := range keys {
			for range waiters / 2 {
				waiting.Go(func() {
					lease, err := client.Acquire(t.Context(), fmt.Sprint("key ", i), nil)
					if err != nil {
						t.Errorf("a waiter of process %d: %v", p, err)
						return
					}
					wait.Lock()
					fences[i] = append(fences[i], lease.Fence())
					granted[i] = time.Now()
					wait.Unlock()
					// A connection to the server that is gone may be met late.
					if err := lease.Release(); err != nil && !errors.Is(err, dibs.ErrStore) {
						t.Errorf("its release: %v", err)
					}
				})
			}
		}
		eventually(t, 10*time.Second, "all wait", func() bool {
			waits := 0
			for e, err := range store.List(t.Context(), dibs.Query{}) {
				if err != nil {
					t.Fatal(err)
				}
				waits += e.Waiters
			}
			return waits == (p+1)*keys*waiters/2
		})
	}

	l.lose()
	start := time.Now()
	waiting.Wait()
	// A renewal is due every third of the TTL, and one that met a server that
	// was away is tried again after a fifteenth. Whoever waits asks twice a second, should
	// nobody tell it anything.
	const slack = 2 * time.Second
	told, served := l.slow+l.ttl/3+l.ttl/15+slack, l.slow+waiters*time.Second/2+slack
	for i, lease := range held {
		if cause := context.Cause(lease.Context()); !errors.Is(cause, dibs.ErrLost) {
			t.Errorf("the lease on key %d ended with %v, want ErrLost", i, cause)
		}
		if d := lost[i].Sub(start); d > told {
			t.Errorf("the holder of key %d was told after %v; it should be within %v", i, d, told)
		}
		if len(fences[i]) != waiters {
			t.Errorf("%d waiters for key %d were served, want %d", len(fences[i]), i, waiters)
		}
		if d := granted[i].Sub(start); d > served {
			t.Errorf("the last waiter for key %d was served after %v; it should be within %v", i, d, served)
		}
		last := lease.Fence()
		for _, f := range fences[i] {
			if f <= last {
				t.Errorf("key %d: fence %d was granted after %d; the lost one is %d, and then came %v", i, f, last, lease.Fence(), fences[i])
			}
			last = f
		}
		if err := lease.Release(); !errors.Is(err, dibs.ErrLost) {
			t.Errorf("releasing what was lost: %v", err)
		}
	}
}

// laggingReplica promotes a replica that heard nothing for a while, and has the
// clients' connections lead there.
func laggingReplica(t *testing.T) losing {
	master, replica := servertest.Redis(t, nil), servertest.Redis(t, nil)
	wire := servertest.NewWire(t, master.Addr())
	_, port, err := net.SplitHostPort(wire.Addr())
	if err != nil {
		t.Fatal(err)
	}
	replica.Must("REPLICAOF", "127.0.0.1", port)
	eventually(t, 10*time.Second, "the replica is in step", func() bool { return replica.Info("master_link_status") == "up" })
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
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		s, err := New(client, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	return losing{open: connect, ttl: 6 * time.Second, lag: wire.Hang, lose: func() {
		knowsNothing(t, []*servertest.RedisServer{replica})
		replica.Must("REPLICAOF", "NO", "ONE")
		addr := replica.Addr()
		where.Store(&addr)
		master.Kill()
	}}
}

// laggingSentinel has sentinels promote a replica that heard nothing for a
// while, because the master stands still, connections and all.
func laggingSentinel(t *testing.T) losing {
	sentinels := servertest.RedisSentinel(t, &servertest.SentinelOptions{DownAfter: time.Second})
	master := sentinels.Master()
	return losing{
		open: func() *Store { return open(t, sentinels.URL(), nil) },
		ttl:  18 * time.Second,           // so that it is still trusted when there is a master again
		slow: 2*stallLimit + time.Second, // what was under way, and a connection that is tried in vain
		lag:  func() { deafen(t, master, sentinels.Servers()) },
		lose: func() {
			knowsNothing(t, sentinels.Servers()[1:])
			master.Pause()
			sentinels.AwaitMaster(master)
		},
	}
}

// laggingCluster has all replicas of a cluster promoted, which heard nothing for
// a while.
func laggingCluster(t *testing.T) losing {
	cluster := servertest.RedisCluster(t, &servertest.ClusterOptions{NodeTimeout: time.Minute})
	masters, replicas := cluster.Nodes()[:3], cluster.Nodes()[3:]
	return losing{
		open: func() *Store { return open(t, cluster.URL(), nil) },
		ttl:  9 * time.Second,
		lag: func() {
			for _, master := range masters {
				deafen(t, master, replicas)
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

// deafen makes replicas unable to hear their master, as a password does that was
// changed on one side only.
func deafen(t *testing.T, master *servertest.RedisServer, all []*servertest.RedisServer) {
	t.Helper()
	_, port, err := net.SplitHostPort(master.Addr())
	if err != nil {
		t.Fatal(err)
	}
	for _, replica := range all {
		if replica.Info("master_port") != port {
			continue
		}
		replica.Must("CONFIG", "SET", "masterauth", "wrong")
		master.Must("CLIENT", "KILL", "TYPE", "replica")
		eventually(t, 10*time.Second, "the replica is cut off", func() bool {
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
