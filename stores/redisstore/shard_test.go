//go:build nightly

package redisstore

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/product"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storetest"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
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

// sharedCluster is six nodes that outlive a busy machine. Each test has a prefix of its
// own, see ownPrefix.
var sharedCluster = sync.OnceValue(func() *servertest.Cluster {
	return servertest.RedisCluster(scope, &servertest.ClusterOptions{NodeTimeout: time.Minute})
})

// sharedSentinels watch a master and a replica, and leave them alone.
var sharedSentinels = sync.OnceValue(func() *servertest.Sentinels {
	return servertest.RedisSentinel(scope, &servertest.SentinelOptions{DownAfter: time.Minute})
})

// TestOpenGroups is TestOpen on sentinels and clusters.
func TestOpenGroups(t *testing.T) {
	for _, test := range []struct {
		name string
		url  func(t *testing.T) (url string, keys func() string)
	}{
		{"sentinels", func(t *testing.T) (string, func() string) {
			s := servertest.RedisSentinel(t, &servertest.SentinelOptions{Redis: &servertest.RedisOptions{Password: "secret"}})
			return s.URL(), keysOf(s.Master())
		}},
		{"sentinels over TLS", func(t *testing.T) (string, func() string) {
			s := servertest.RedisSentinel(t, &servertest.SentinelOptions{Redis: &servertest.RedisOptions{TLS: true}})
			return s.URL() + "?ca=" + url.QueryEscape(s.Master().CAFile()), keysOf(s.Master())
		}},
		{"cluster", func(t *testing.T) (string, func() string) {
			c := servertest.RedisCluster(t, &servertest.ClusterOptions{Replicas: -1, Redis: &servertest.RedisOptions{Password: "secret"}})
			return c.URL(), func() string { return keysOf(c.Nodes()[0])() + keysOf(c.Nodes()[1])() + keysOf(c.Nodes()[2])() }
		}},
		{"cluster over TLS by one node", func(t *testing.T) (string, func() string) {
			c := servertest.RedisCluster(t, &servertest.ClusterOptions{Replicas: -1, Redis: &servertest.RedisOptions{TLS: true}})
			n := c.Nodes()
			return strings.Replace(strings.TrimSuffix(n[0].URL(), "/0"), "rediss", "rediss+cluster", 1) + "?ca=" + url.QueryEscape(n[0].CAFile()),
				func() string { return keysOf(n[0])() + keysOf(n[1])() + keysOf(n[2])() }
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			url, keys := test.url(t)
			opens(t, url, keys)
		})
	}
}

// TestGroupsRefuse is TestOpenRefuses with real clusters and sentinels.
func TestGroupsRefuse(t *testing.T) {
	group, nodes := sharedSentinels(), sharedCluster()
	sentinel, node := group.Sentinels()[0], nodes.Nodes()[0]
	at := func(s *servertest.RedisServer) string { return "redis://" + s.Addr() }
	refuses(t, []refusal{
		{"node of a cluster", at(node), ErrUnsupported, "write redis+cluster://"},
		{"database of a cluster", at(node) + "/1", ErrUnsupported, "write redis+cluster://"},
		{"sentinel", at(sentinel), ErrUnsupported, "write redis+sentinel://"},
		{"sentinel as a cluster", "redis+cluster://" + sentinel.Addr(), ErrUnsupported, "write redis"},
		{"unknown master", strings.TrimSuffix(group.URL(), group.Name()) + "other", ErrUnsupported, `know no master "other"`},
	})
}

// TestCheckGroups is TestCheck on replicas, sentinels and clusters.
func TestCheckGroups(t *testing.T) {
	sound := servertest.RedisOptions{Persistence: servertest.AOF}
	checks(t, []checkTest{
		{"replica", func(t *testing.T) string {
			master := servertest.Redis(t, &sound)
			o := sound
			o.ReplicaOf = master
			servertest.Redis(t, &o).AwaitReplica()
			return master.URL()
		}, []found{{"replication", advice, "do not wait for them"}}},
		{"replica that is waited for", func(t *testing.T) string {
			master := servertest.Redis(t, &sound)
			o := sound
			o.ReplicaOf = master
			servertest.Redis(t, &o).AwaitReplica()
			return master.URL() + "?replicas=1"
		}, nil},
		{"replicas required", func(t *testing.T) string {
			o := sound
			o.Directives = []string{"min-replicas-to-write 1"}
			s := servertest.Redis(t, &o)
			o = sound
			o.ReplicaOf = s
			servertest.Redis(t, &o).AwaitReplica()
			return s.URL()
		}, []found{{"replication", advice, "do not wait"}}},
		{"sentinels", func(t *testing.T) string { return sharedSentinels().URL() }, []found{
			{"persistence", dangerous, "keeps nothing"}, {"replication", advice, "do not wait"},
		}},
		{"cluster", func(t *testing.T) string {
			o := sound
			o.Directives = []string{"cluster-allow-reads-when-down yes"}
			c := servertest.RedisCluster(t, &servertest.ClusterOptions{Replicas: -1, Redis: &o})
			c.Nodes()[1].Must("CONFIG", "SET", "maxmemory-policy", "allkeys-random", "maxmemory", "100mb")
			c.MasterOf("dibs:{abc}:fence").Must("SET", "dibs:{abc}:fence", time.Now().Add(time.Hour).UnixMicro())
			work(t, open(t, c.URL(), nil))
			return c.URL()
		}, []found{
			{"clock", dangerous, "ahead"}, {"eviction", dangerous, "allkeys-random"}, {"partition", advice, "cluster-allow-reads-when-down is yes"},
		}},
		{"replicas of a cluster", func(t *testing.T) string { return sharedCluster().URL() + "?prefix=" + testkit.Own() }, []found{
			{"persistence", dangerous, "keeps nothing"}, {"replication", advice, "do not wait"},
		}},
	})
}

// TestCheckWhere: of several servers, it is said which ones are meant.
func TestCheckWhere(t *testing.T) {
	t.Parallel()
	c := servertest.RedisCluster(t, &servertest.ClusterOptions{Replicas: -1, Redis: &servertest.RedisOptions{Persistence: servertest.AOF}})
	odd := c.Nodes()[2]
	odd.Must("CONFIG", "SET", "maxmemory-policy", "allkeys-random", "maxmemory", "100mb")
	got, err := open(t, c.URL(), nil).Check(t.Context())
	if err != nil || len(got) != 1 || !strings.HasSuffix(got[0].What, "(at "+odd.Addr()+")") {
		t.Errorf("found\n%s, %v", list(got), err)
	}
}

// TestLeastRightsOfGroups is TestLeastRights on replicas, sentinels and clusters.
func TestLeastRightsOfGroups(t *testing.T) {
	t.Run("Replica", func(t *testing.T) {
		t.Parallel()
		master, _ := replicated(t, false)
		exerciseRights(t, []*servertest.RedisServer{master}, "redis://app:secret@"+master.Addr()+"?replicas=1",
			[]string{"+publish", "+pubsub|numsub", "+subscribe", "+wait"})
	})
	t.Run("Sentinel", func(t *testing.T) {
		t.Parallel()
		exerciseRights(t, sharedSentinels().Servers(), strings.Replace(sharedSentinels().URL(), "://", "://app:secret@", 1)+"?prefix=dibs",
			[]string{"+publish", "+pubsub|numsub", "+subscribe", "+role"})
	})
	t.Run("Cluster", func(t *testing.T) {
		t.Parallel()
		exerciseRights(t, sharedCluster().Nodes(), strings.Replace(sharedCluster().URL(), "://", "://app:secret@", 1),
			[]string{"+spublish", "+pubsub|shardnumsub", "+ssubscribe", "+cluster|slots", "+pexpiretime", "+pttl"})
	})
}

// TestIdleChannels: on a Cluster whose servers cannot save, channels that nobody waits for any
// more are left, others still bring wake-ups, and Close ends all subscriptions. The servers'
// answers do not end the process.
func TestIdleChannels(t *testing.T) {
	t.Parallel()
	cluster := servertest.RedisCluster(t, &servertest.ClusterOptions{Replicas: -1, NodeTimeout: time.Minute})
	s := open(t, cluster.URL(), nil)
	woken := make(chan store.Token, 100)
	s.Notify(func(token store.Token, _ store.Answer) { woken <- token })
	const keys = 12 // on all servers
	var holders, waiters []store.Claim
	for i := range keys {
		name := fmt.Sprint("k", i)
		holders, waiters = append(holders, lock(name)), append(waiters, lock(name, queued))
		mustGrant(t, s, holders[i])
		mustListen(t, s, waiters[i])
	}
	for _, node := range cluster.Nodes() {
		failToSave(t, node)
	}
	// The first half is idle.
	for _, w := range waiters[:keys/2] {
		s.subscriber.mu.Lock()
		c := s.subscriber.channels[s.names.group(w.Key)]
		s.subscriber.mu.Unlock()
		c.lastWait.Store(int64(time.Since(s.subscriber.epoch) - 2*listenIdle))
	}
	testkit.Eventually(t, "the idle channels are left", func() bool {
		for _, w := range waiters[:keys/2] {
			if s.subscriber.channel(s.names.group(w.Key)) != pending {
				return false
			}
		}
		return true
	})
	for _, w := range waiters[keys/2:] {
		if s.subscriber.channel(s.names.group(w.Key)) == pending {
			t.Errorf("the channel of %v was left, too", w.Key)
		}
	}
	for _, node := range cluster.Nodes() {
		node.Must("CONFIG", "SET", "save", "")
	}
	for i, w := range waiters {
		mustListen(t, s, w) // again
		mustSettle(t, s, holders[i], store.Release)
		for testkit.Await(t, "a wake-up", woken) != w.Token {
		}
	}
	testkit.Must(t, s.Close())
	for _, w := range waiters {
		testkit.Eventually(t, "the subscription has ended", func() bool {
			return !subscribed(s, cluster.MasterOf(s.names.state(w.Key)), w.Key)
		})
	}
}

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
