//go:build nightly

package redisstore

import (
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

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
		master := servertest.Redis(t, nil)
		replica := servertest.Redis(t, &servertest.RedisOptions{ReplicaOf: master})
		follows(t, master, replica)
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
