//go:build nightly && unix

package servertest

import (
	"slices"
	"strings"
	"testing"
)

func TestRedisCluster(t *testing.T) {
	t.Parallel()
	c := RedisCluster(t, &ClusterOptions{Redis: &RedisOptions{Password: "se cret", Persistence: AOF}})
	if got := len(c.Nodes()); got != 6 {
		t.Fatalf("%d nodes; want 6", got)
	}
	if want := "redis+cluster://:se%20cret@" + strings.Join(c.Addrs(), ","); c.URL() != want {
		t.Errorf("URL is %s; want %s", c.URL(), want)
	}
	masters := map[*RedisServer]bool{}
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		master := c.MasterOf(key)
		master.Must("SET", key, "value") // or MOVED
		masters[master] = true
	}
	if len(masters) != 3 {
		t.Errorf("%d masters; want 3", len(masters))
	}

	old := c.MasterOf("a")
	replicas := c.ReplicasOf(old)
	if len(replicas) != 1 {
		t.Fatalf("%d replicas; want 1", len(replicas))
	}
	replicas[0].AwaitReplica()
	old.Kill()
	if master := c.AwaitMaster("a", old); master != replicas[0] {
		t.Errorf("%s took over, not the replica %s", master.name, replicas[0].name)
	}
	if got := replicas[0].Must("GET", "a"); got != "value" {
		t.Errorf("the replica had %v", got)
	}
	old.Restart()
	c.Await()
	if err := await(func() error { return old.inStep() }); err != nil {
		t.Errorf("the old master is not a replica: %v", err)
	}
	if got := c.ReplicasOf(replicas[0]); !slices.Contains(got, old) {
		t.Errorf("the replicas are %v", got)
	}
}

func TestRedisClusterTLS(t *testing.T) {
	t.Parallel()
	c := RedisCluster(t, &ClusterOptions{Masters: 2, Replicas: -1, Redis: &RedisOptions{TLS: true}})
	if got := len(c.Nodes()); got != 2 {
		t.Fatalf("%d nodes; want 2", got)
	}
	if !strings.HasPrefix(c.URL(), "rediss+cluster://127.0.0.1:") {
		t.Errorf("URL is %s", c.URL())
	}
	c.MasterOf("key").Must("SET", "key", "value")
}

func TestClaims(t *testing.T) {
	const view = "aa 127.0.0.1:1@2 master - 0 1 7 connected 0-100\n" +
		"bb 127.0.0.1:3@4 myself,master - 0 1 3 connected 5 200-300 [17->-aa]\n"
	for slot, want := range map[int64]bool{5: true, 6: false, 17: false, 200: true, 300: true, 301: false, 50: false} {
		if epoch, ok := claims(view, slot); ok != want || ok && epoch != 3 {
			t.Errorf("slot %d: %v, epoch %d; want %v, 3", slot, ok, epoch, want)
		}
	}
	if _, ok := claims(strings.ReplaceAll(view, "myself,master", "myself,slave"), 200); ok {
		t.Error("a replica claims a slot")
	}
}
