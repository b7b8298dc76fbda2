//go:build nightly

package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
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
	"github.com/dibs-go/dibs/store"
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

// TestSlotIsMoved: while a slot moves from one server of a cluster to another, a claim
// for a key that is half there has an unknown outcome. Nothing is
// granted twice, and afterwards all is as it was.
func TestSlotIsMoved(t *testing.T) {
	t.Parallel()
	cluster := servertest.RedisCluster(t, nil)
	s := open(t, cluster.URL(), nil)
	held, next := lock("k"), lock("k", queued)
	mustGrant(t, s, held)
	mustListen(t, s, next)

	m := beginMove(t, cluster, s.names.state(held.Key))
	for _, name := range []string{newName(s, held.Key, 'q'), newName(s, held.Key, 'w'), s.names.state(held.Key)} {
		m.move(name)
		for what, ask := range map[string]func(context.Context) error{
			"a claim": func(ctx context.Context) error {
				return s.Claim(ctx, []store.Claim{lock("k", answered)}, make([]store.Answer, 1))
			},
			"a waiter's claim": func(ctx context.Context) error {
				return s.Claim(ctx, []store.Claim{next}, make([]store.Answer, 1))
			},
			"a release": func(ctx context.Context) error {
				return s.Settle(ctx, []store.Settlement{{Key: held.Key, Token: held.Token}}, make([]error, 1))
			},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			err := ask(ctx)
			cancel()
			if !errors.Is(err, ErrReadOnly) {
				t.Errorf("after %q has moved, %s was answered %v; want ErrReadOnly", name, what, err)
			}
		}
	}
	m.move(s.names.fence(s.names.group(held.Key)))
	m.move(s.names.listed(s.names.group(held.Key)))
	m.end()
	if answer, err := renew(t, s, held); answer != nil || err != nil {
		t.Errorf("the renewal was answered %v, %v", answer, err)
	}
	mustSettle(t, s, held, store.Release)
	if a := mustGrant(t, s, next); a.Attempt != 1 {
		t.Errorf("it is attempt %d, want 1", a.Attempt)
	}
}

// TestSlotIsToMove: while a slot's move has begun, and nothing of a key has gone yet, its lease can be
// renewed and released, even if nothing is listed.
func TestSlotIsToMove(t *testing.T) {
	t.Parallel()
	cluster := servertest.RedisCluster(t, nil)
	s := open(t, cluster.URL(), nil)
	held := lock("k", brief)
	mustGrant(t, s, held)
	beginMove(t, cluster, s.names.state(held.Key))
	if answer, err := renew(t, s, held); answer != nil || err != nil {
		t.Errorf("the renewal was answered %v, %v", answer, err)
	}
	mustSettle(t, s, held, store.Release)
}

// TestRecordIsMoved: a key's state has gone to another server, and its record not
// yet. No claim is granted that the record answers.
func TestRecordIsMoved(t *testing.T) {
	t.Parallel()
	cluster := servertest.RedisCluster(t, nil)
	s := open(t, cluster.URL(), nil)
	done, other := lock("k", answered), lock("k")
	mustGrant(t, s, done)
	mustSettle(t, s, done, store.Keep)
	mustGrant(t, s, other)
	mustSettle(t, s, other, store.Abandon) // so that there is a state, too

	m := beginMove(t, cluster, s.names.state(done.Key))
	m.move(s.names.state(done.Key))
	m.move(s.names.fence(s.names.group(done.Key)))
	m.move(s.names.listed(s.names.group(done.Key)))
	for _, mode := range []store.Mode{store.Try, store.Queue, store.Look} {
		a, err := claim(t, s, lock("k", answered, func(c *store.Claim) { c.Mode = mode }))
		if !errors.Is(err, ErrReadOnly) {
			t.Errorf("a claim of mode %d was answered %+v, %v; want ErrReadOnly", mode, a, err)
		}
	}
	m.move(s.names.record(done.Key))
	m.end()
	if a, err := claim(t, s, lock("k", answered)); err != nil || a.State != store.Done {
		t.Errorf("afterwards a claim was answered %+v, %v; want the record", a, err)
	}
}

// move is a slot's on its way from one server of a cluster to another.
type move struct {
	from, to   *servertest.RedisServer
	slot       any
	host, port string
}

// beginMove begins to move the slot of a name.
func beginMove(t *testing.T, cluster *servertest.Cluster, name string) *move {
	t.Helper()
	m := &move{from: cluster.MasterOf(name), to: cluster.Nodes()[0]}
	if m.to == m.from {
		m.to = cluster.Nodes()[1]
	}
	var err error
	if m.host, m.port, err = net.SplitHostPort(m.to.Addr()); err != nil {
		t.Fatal(err)
	}
	m.slot = m.from.Must("CLUSTER", "KEYSLOT", name)
	m.to.Must("CLUSTER", "SETSLOT", m.slot, "IMPORTING", m.from.Must("CLUSTER", "MYID"))
	m.from.Must("CLUSTER", "SETSLOT", m.slot, "MIGRATING", m.to.Must("CLUSTER", "MYID"))
	return m
}

// move moves one name.
func (m *move) move(name string) { m.from.Must("MIGRATE", m.host, m.port, name, 0, 5000) }

// end gives the slot to the server that has all of it now.
func (m *move) end() {
	for _, server := range []*servertest.RedisServer{m.to, m.from} {
		server.Must("CLUSTER", "SETSLOT", m.slot, "NODE", m.to.Must("CLUSTER", "MYID"))
	}
}
