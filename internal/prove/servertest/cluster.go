//go:build unix

package servertest

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// slots is the number of slots of a Redis Cluster.
const slots = 16384

// ClusterOptions describes a Redis Cluster. nil and the zero value mean three masters
// with one replica each.
type ClusterOptions struct {
	// Masters is the number of masters, which share the slots evenly. 0: 3.
	Masters int
	// Replicas is the number of replicas of each master. 0: 1; negative: none.
	Replicas int
	// NodeTimeout is how long a node may be silent before it counts as failed. 0: 2 s. A
	// killed master is replaced about a second later.
	NodeTimeout time.Duration
	// Redis are the options of each node; nil: the defaults. ReplicaOf is ignored.
	Redis *RedisOptions
}

// A Cluster is a Redis Cluster of a test. It redirects clients to the nodes themselves,
// so a Wire in front of it has no use.
type Cluster struct {
	owner Owner
	nodes []*RedisServer // masters first
	known int            // how many nodes know each other
}

// RedisCluster starts a Redis Cluster that ends with its owner. It returns when all slots
// are served and all replicas are in step, after two to four seconds; most of that is the
// nodes' own delay.
func RedisCluster(owner Owner, o *ClusterOptions) *Cluster {
	owner.Helper()
	o = options(o)
	masters := cmp.Or(o.Masters, 3)
	replicas := max(cmp.Or(o.Replicas, 1), 0)
	node := *options(o.Redis)
	node.ReplicaOf = nil
	node.role = redisRole{cluster: true, lines: []string{
		fmt.Sprintf("cluster-node-timeout %d", cmp.Or(o.NodeTimeout, 2*time.Second).Milliseconds()),
		// A replica stays with its master, and may replace it whatever its age. So a
		// test knows which replica takes over.
		"cluster-allow-replica-migration no",
		"cluster-replica-validity-factor 0",
	}}
	nodes, err := startAll(owner, slices.Repeat([]*RedisOptions{&node}, masters*(1+replicas)))
	c := &Cluster{owner: owner, nodes: nodes, known: len(nodes)}
	if err == nil {
		err = c.join(masters)
	}
	if err != nil {
		owner.Fatalf("starting a cluster: %v", err)
	}
	c.Await()
	return c
}

// startAll starts servers in parallel.
func startAll(owner Owner, options []*RedisOptions) ([]*RedisServer, error) {
	servers := make([]*RedisServer, len(options))
	errs := make([]error, len(options))
	var all sync.WaitGroup
	for i, o := range options {
		all.Go(func() { servers[i], errs[i] = newRedis(owner, o) })
	}
	all.Wait()
	return servers, errors.Join(errs...)
}

// join makes the nodes one cluster. The first nodes are its masters.
func (c *Cluster) join(masters int) error {
	for i, node := range c.nodes {
		if i < masters {
			if _, err := node.Do("CLUSTER", "ADDSLOTSRANGE", i*slots/masters, (i+1)*slots/masters-1); err != nil {
				return err
			}
		}
		// Different epochs avoid later conflicts.
		if _, err := node.Do("CLUSTER", "SET-CONFIG-EPOCH", i+1); err != nil {
			return err
		}
		// Every node meets every other one, because gossip takes seconds.
		for _, other := range c.nodes[:i] {
			if _, err := node.Do("CLUSTER", "MEET", "127.0.0.1", other.port, other.bus); err != nil {
				return err
			}
		}
	}
	for i, node := range c.nodes[masters:] {
		id, err := c.nodes[i%masters].Do("CLUSTER", "MYID")
		if err != nil {
			return err
		}
		err = await(func() error { // until it knows its master
			_, err := node.Do("CLUSTER", "REPLICATE", id)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Nodes returns all nodes, the first masters first.
func (c *Cluster) Nodes() []*RedisServer { return slices.Clone(c.nodes) }

// Addrs returns the addresses of all nodes.
func (c *Cluster) Addrs() []string { return addrs(c.nodes) }

// URL returns the addresses of all nodes with the credentials of the default user:
// "redis+cluster://:secret@127.0.0.1:4321,127.0.0.1:4322", or "rediss+cluster://" with
// TLS.
func (c *Cluster) URL() string { return joinedURL("cluster", c.nodes[0].options, c.nodes, "") }

// MasterOf returns the master that serves the key, and waits while there is none.
func (c *Cluster) MasterOf(key string) *RedisServer {
	c.owner.Helper()
	return c.AwaitMaster(key, nil)
}

// AwaitMaster waits until another master than the given one serves the key and the
// cluster serves all slots. It returns that master.
func (c *Cluster) AwaitMaster(key string, other *RedisServer) *RedisServer {
	c.owner.Helper()
	var master *RedisServer
	mustAwait(c.owner, "waiting for a master", func() error {
		if err := c.serves(); err != nil {
			return err
		}
		var err error
		if master, err = c.masterOf(key); err == nil && master == other {
			err = fmt.Errorf("the master is still %s", other.name)
		}
		return err
	})
	return master
}

// ReplicasOf returns the running replicas of the master.
func (c *Cluster) ReplicasOf(master *RedisServer) []*RedisServer {
	c.owner.Helper()
	var replicas []*RedisServer
	for _, node := range c.nodes {
		if node.serving() && node.Info("master_port") == master.port.String() {
			replicas = append(replicas, node)
		}
	}
	return replicas
}

// Await returns when the running nodes agree that all slots are served, and their
// replicas are in step.
func (c *Cluster) Await() {
	c.owner.Helper()
	mustAwait(c.owner, "waiting for the cluster", c.whole)
}

// whole returns nil when Await may return.
func (c *Cluster) whole() error {
	if err := c.serves(); err != nil {
		return err
	}
	for _, node := range c.nodes {
		if !node.serving() {
			continue
		}
		role, err := node.info("role")
		if err == nil && role == "slave" {
			err = node.inStep()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", node.name, err)
		}
	}
	return nil
}

// serves returns nil when the nodes agree that all slots are served.
func (c *Cluster) serves() error {
	for _, node := range c.nodes {
		if !node.serving() {
			continue
		}
		answer, err := node.Do("CLUSTER", "INFO")
		if err != nil {
			return err
		}
		state := fmt.Sprint(answer)
		for _, want := range []string{"cluster_state:ok", fmt.Sprintf("cluster_slots_ok:%d", slots), fmt.Sprintf("cluster_known_nodes:%d", c.known)} {
			if !strings.Contains(state, want+"\r\n") {
				return fmt.Errorf("%s: not %s:\n%s", node.name, want, state)
			}
		}
	}
	return nil
}

// masterOf returns the node that claims the key with the highest epoch, because a deposed
// master may not know it yet.
func (c *Cluster) masterOf(key string) (*RedisServer, error) {
	var master *RedisServer
	highest := int64(-1)
	for _, node := range c.nodes {
		if !node.serving() {
			continue
		}
		slot, err := node.Do("CLUSTER", "KEYSLOT", key)
		if err != nil {
			return nil, err
		}
		view, err := node.Do("CLUSTER", "NODES")
		if err != nil {
			return nil, err
		}
		if epoch, ok := claims(fmt.Sprint(view), slot.(int64)); ok && epoch > highest {
			master, highest = node, epoch
		}
	}
	if master == nil {
		return nil, fmt.Errorf("no master for %q", key)
	}
	return master, nil
}

// claims reads from CLUSTER NODES whether the answering node is master of a slot, and its
// epoch.
func claims(nodes string, slot int64) (epoch int64, ok bool) {
	for line := range strings.Lines(nodes) {
		// id addr flags master ping pong epoch link slot slot-slot …
		fields := strings.Fields(line)
		if len(fields) < 8 || !strings.Contains(fields[2], "myself,master") {
			continue
		}
		epoch, err := strconv.ParseInt(fields[6], 10, 64)
		if err != nil {
			return 0, false
		}
		for _, span := range fields[8:] {
			first, last, ranged := strings.Cut(span, "-")
			if !ranged {
				last = first
			}
			from, err1 := strconv.ParseInt(first, 10, 64)
			to, err2 := strconv.ParseInt(last, 10, 64)
			if err1 == nil && err2 == nil && from <= slot && slot <= to {
				return epoch, true
			}
		}
	}
	return 0, false
}

// addrs returns the servers' addresses.
func addrs(servers []*RedisServer) []string {
	all := make([]string, len(servers))
	for i, s := range servers {
		all[i] = s.Addr()
	}
	return all
}

// joinedURL is the URL of several servers.
func joinedURL(kind string, o RedisOptions, servers []*RedisServer, path string) string {
	u := url.URL{Scheme: "redis+" + kind, Host: strings.Join(addrs(servers), ","), Path: path}
	if o.TLS {
		u.Scheme = "rediss+" + kind
	}
	if o.Password != "" {
		u.User = url.UserPassword("", o.Password)
	}
	return u.String()
}
