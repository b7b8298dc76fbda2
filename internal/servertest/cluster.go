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

// slots is how many a Redis Cluster has.
const slots = 16384

// ClusterOptions says what kind of Redis Cluster is wanted. nil and the zero
// value mean three masters with a replica each.
type ClusterOptions struct {
	// Masters share the slots evenly; 0: 3.
	Masters int
	// Replicas is how many each master has; 0: 1, negative: none.
	Replicas int
	// NodeTimeout is how long a node is silent before it counts as failed; 0:
	// 2 s. A master that is killed is replaced a second or so after it.
	NodeTimeout time.Duration
	// Redis is what each node is like; nil: the defaults. ReplicaOf is ignored.
	Redis *RedisOptions
}

// A Cluster is a Redis Cluster that belongs to a test. Clients that it
// redirects are sent to the nodes themselves, so a Wire is no use before it.
type Cluster struct {
	owner Owner
	nodes []*RedisServer // masters first
	known int            // how many know one another
}

// RedisCluster starts a Redis Cluster that ends with its owner, and returns
// when all slots are served and all replicas are in step: after two to four
// seconds, most of which the nodes insist on.
func RedisCluster(owner Owner, o *ClusterOptions) *Cluster {
	owner.Helper()
	if o == nil {
		o = &ClusterOptions{}
	}
	masters := cmp.Or(o.Masters, 3)
	replicas := max(cmp.Or(o.Replicas, 1), 0)
	node := RedisOptions{}
	if o.Redis != nil {
		node = *o.Redis
	}
	node.ReplicaOf = nil
	node.role = redisRole{cluster: true, lines: []string{
		fmt.Sprintf("cluster-node-timeout %d", cmp.Or(o.NodeTimeout, 2*time.Second).Milliseconds()),
		// A replica stays with its master and follows it whatever its age: a
		// test knows which is whose, and who will take over.
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

// startAll starts servers side by side.
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

// join makes the nodes one cluster: the first are its masters.
func (c *Cluster) join(masters int) error {
	for i, node := range c.nodes {
		if i < masters {
			if _, err := node.Do("CLUSTER", "ADDSLOTSRANGE", i*slots/masters, (i+1)*slots/masters-1); err != nil {
				return err
			}
		}
		// Epochs that differ need not be told apart later.
		if _, err := node.Do("CLUSTER", "SET-CONFIG-EPOCH", i+1); err != nil {
			return err
		}
		// Everybody meets everybody: word of mouth takes seconds.
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
		err = await(func() error { // until it has heard of its master
			_, err := node.Do("CLUSTER", "REPLICATE", id)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Nodes returns all nodes; those that were masters at first come first.
func (c *Cluster) Nodes() []*RedisServer { return slices.Clone(c.nodes) }

// Addrs returns the addresses of all nodes.
func (c *Cluster) Addrs() []string { return addrs(c.nodes) }

// URL returns the addresses of all nodes with what is needed to use them as the
// default user: "redis+cluster://:secret@127.0.0.1:4321,127.0.0.1:4322", or
// "rediss+cluster://" with TLS.
func (c *Cluster) URL() string { return joinedURL("cluster", c.nodes[0].options, c.nodes, "") }

// MasterOf returns the master that serves the key, waiting for one while there
// is none.
func (c *Cluster) MasterOf(key string) *RedisServer {
	c.owner.Helper()
	return c.AwaitMaster(key, nil)
}

// AwaitMaster returns the master that serves the key once that is another than
// the one given, and the cluster serves all slots.
func (c *Cluster) AwaitMaster(key string, other *RedisServer) *RedisServer {
	c.owner.Helper()
	var master *RedisServer
	err := await(func() error {
		if err := c.serves(); err != nil {
			return err
		}
		var err error
		if master, err = c.masterOf(key); err == nil && master == other {
			err = fmt.Errorf("the master is still %s", other.name)
		}
		return err
	})
	if err != nil {
		c.owner.Fatalf("waiting for a master: %v", err)
	}
	return master
}

// ReplicasOf returns the nodes that are replicas of the master and can be asked.
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

// Await returns when the nodes that can be asked agree that all slots are
// served, and the replicas among them are in step.
func (c *Cluster) Await() {
	c.owner.Helper()
	if err := await(c.whole); err != nil {
		c.owner.Fatalf("waiting for the cluster: %v", err)
	}
}

// whole returns nil when the cluster is what Await waits for.
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

// masterOf returns the master of a key: the node that says so of itself, by the
// highest epoch, since one that was deposed may not know yet.
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

// claims reads from CLUSTER NODES whether the node that answered says that it
// is the master of a slot, and its epoch.
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

// joinedURL is the URL of several servers that are used as one.
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
