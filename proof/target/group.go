//go:build unix

package target

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/wire"
	"github.com/dibs-go/dibs/proof/fault"
)

// member is a server of a group: *servertest.PostgresServer, *servertest.MariaDBServer,
// *servertest.RedisServer.
type member[S any] interface {
	fault.Server
	Addr() string
	// Follow makes a server a standby of what is at an address.
	Follow(addr string)
	// Position is how much a primary has done, and Received how much of that a standby has that is
	// cut off.
	Position() (int64, error)
	Received() (int64, error)
	Promote()
	// Rejoin makes an old primary a standby of the new one.
	Rejoin(primary S, addr string)
	AwaitStandby(primary S)
}

// group is a primary with its standbys. They change roles with each failover: the standby that has
// received most is promoted.
type group[S member[S]] struct {
	standbys []*standby[S]
	clients  []*wire.Wire // which lead to the primary

	mu      sync.Mutex
	primary S

	old           *standby[S] // the old primary, which Rebuild makes a standby
	stays         bool        // it went on after the last failover
	wrote, forked int64       // what it had done at its end, and what the new primary began with
}

// standby is a standby, and the wire by which it follows the primary.
type standby[S any] struct {
	server S
	link   *wire.Wire
}

var (
	_ fault.Server   = (*group[*servertest.PostgresServer])(nil)
	_ fault.Failover = (*group[*servertest.MariaDBServer])(nil)
)

// newGroup starts n standbys of the primary.
func newGroup[S member[S]](owner servertest.Owner, primary S, n int, start func() S) *group[S] {
	owner.Helper()
	g := &group[S]{primary: primary}
	for range n {
		s := &standby[S]{start(), servertest.NewWire(owner, primary.Addr())}
		s.server.Follow(s.link.Addr())
		g.standbys = append(g.standbys, s)
	}
	g.inStep()
	return g
}

// follow returns a wire that leads to the primary, whichever server that is.
func (g *group[S]) follow(owner servertest.Owner) *wire.Wire {
	owner.Helper()
	link := servertest.NewWire(owner, g.primary.Addr())
	g.clients = append(g.clients, link)
	return link
}

// Kill ends the primary at once.
func (g *group[S]) Kill() { g.first().Kill() }

// Restart starts the primary again on its data.
func (g *group[S]) Restart() { g.first().Restart() }

// Pause stops the primary.
func (g *group[S]) Pause() { g.first().Pause() }

// Continue lets the primary go on.
func (g *group[S]) Continue() { g.first().Continue() }

func (g *group[S]) first() S {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.primary
}

// inStep waits until all standbys have what the primary had at the start of the call.
func (g *group[S]) inStep() {
	for _, s := range g.standbys {
		s.server.AwaitStandby(g.primary)
	}
}

// Lag holds back what the primary sends to one of its standbys.
func (g *group[S]) Lag() error {
	g.inStep()
	g.standbys[rand.IntN(len(g.standbys))].link.Set(wire.Trouble{Hold: true}, nil)
	return nil
}

// Promote makes the standby that has received most the primary. The others follow it. The old
// primary is killed first, unless it stays.
func (g *group[S]) Promote(stays bool) (addr string, err error) {
	if g.stays = stays; !stays {
		if g.wrote, err = g.primary.Position(); err != nil {
			return "", err
		}
		g.primary.Kill()
	}
	g.forked = -1
	for _, s := range g.standbys {
		s.link.Set(wire.Trouble{Hold: true, Refuse: true}, nil)
		s.link.Reset() // what was on its way is lost
		got, err := s.server.Received()
		if err != nil {
			return "", err
		}
		if got > g.forked {
			g.old, g.forked = s, got
		}
	}
	g.old.server.Promote()
	g.mu.Lock()
	g.primary, g.old.server = g.old.server, g.primary
	g.mu.Unlock()
	for _, s := range g.standbys {
		s.link.Lead(g.primary.Addr())
		s.link.Set(wire.Trouble{}, nil)
	}
	for _, link := range g.clients {
		link.Lead(g.primary.Addr())
		link.Reset()
	}
	return g.primary.Addr(), nil
}

// Rebuild makes the old primary a standby.
func (g *group[S]) Rebuild() (behind int64, err error) {
	if g.stays {
		if g.wrote, err = g.old.server.Position(); err != nil {
			return 0, fmt.Errorf("looking at the old primary: %w", err)
		}
	}
	g.old.server.Rejoin(g.primary, g.old.link.Addr())
	g.inStep()
	return g.wrote - g.forked, nil
}

// watched is a Redis that Sentinel or Cluster watches: they put a replica in the place of a
// silent master, and the clients follow by themselves. The master is stopped and not killed, so
// that there are two masters for a moment.
type watched struct {
	master func() *servertest.RedisServer
	next   func(after *servertest.RedisServer) *servertest.RedisServer
	whole  func()
	behind int64
}

var _ fault.Failover = (*watched)(nil)

// silence is after how long a silent master is replaced.
const silence = time.Second

// Sentinel starts a Redis with a replica and three sentinels. It has no wires.
func Sentinel(owner servertest.Owner) *fault.Target {
	owner.Helper()
	s := servertest.RedisSentinel(owner, &servertest.SentinelOptions{
		DownAfter: silence, Redis: &servertest.RedisOptions{Persistence: servertest.AOF},
	})
	return &fault.Target{URL: s.URL(), Failover: &watched{master: s.Master, next: s.AwaitMaster, whole: s.Await}}
}

// Cluster starts a Redis Cluster of three masters with a replica each. It has no wires.
func Cluster(owner servertest.Owner) *fault.Target {
	owner.Helper()
	c := servertest.RedisCluster(owner, &servertest.ClusterOptions{
		NodeTimeout: silence, Redis: &servertest.RedisOptions{Persistence: servertest.AOF},
	})
	key := ""
	return &fault.Target{URL: c.URL(), Failover: &watched{
		master: func() *servertest.RedisServer {
			key = fmt.Sprint("slot", rand.N(1000)) // of any of the masters
			return c.MasterOf(key)
		},
		next:  func(after *servertest.RedisServer) *servertest.RedisServer { return c.AwaitMaster(key, after) },
		whole: c.Await,
	}}
}

// Lag does nothing: the replica lacks what the old master does when it continues.
func (u *watched) Lag() error { return nil }

// Promote stops the master until a replica has taken its place, and lets it go on. The old
// master then cannot resynchronize from where it was, because it did more than its replica had.
// The new master counts that.
func (u *watched) Promote(bool) (addr string, err error) {
	old := u.master()
	old.Pause()
	master := u.next(old)
	missed := func() (n int64) {
		if err == nil {
			n, err = strconv.ParseInt(master.Info("sync_partial_err"), 10, 64)
		}
		return n
	}
	before := missed()
	old.Continue()
	u.whole()
	u.behind = missed() - before
	return master.Addr(), err
}

// Rebuild only counts, because Promote has waited until the old master follows the new one.
func (u *watched) Rebuild() (behind int64, err error) { return u.behind, nil }

// PostgresPatroni starts three PostgreSQL servers under Patroni, behind the address of an HAProxy.
func PostgresPatroni(owner servertest.Owner) *fault.Target {
	owner.Helper()
	c := servertest.Patroni(owner, &servertest.PatroniOptions{MaxConnections: connections})
	return underPatroni(c, c.URL())
}

// PostgresPatroniHosts is PostgresPatroni with a URL that names the servers. It has no wires.
// Asynchronous leaves out Patroni's synchronous_mode.
func PostgresPatroniHosts(owner servertest.Owner, asynchronous bool) *fault.Target {
	owner.Helper()
	c := servertest.Patroni(owner, &servertest.PatroniOptions{MaxConnections: connections, Asynchronous: asynchronous})
	return underPatroni(c, c.HostsURL())
}

func underPatroni(c *servertest.PatroniCluster, url string) *fault.Target {
	return &fault.Target{URL: url + "&migrate=true", Manager: &managedBy{c: c}, Durable: true, Synchronous: true}
}

// managedBy is Patroni as a fault.Manager.
type managedBy struct {
	c *servertest.PatroniCluster
	// struck is the primary that something was done to.
	struck *servertest.PatroniNode
}

var _ fault.Manager = (*managedBy)(nil)

// KillServer kills the primary, and with its host its Patroni, too.
func (m *managedBy) KillServer(host bool) error {
	return m.strike(func(n *servertest.PatroniNode) {
		if host {
			n.Kill()
		}
		n.KillPostgres()
	})
}

// StopManager stops the primary's Patroni.
func (m *managedBy) StopManager() error { return m.strike((*servertest.PatroniNode).Pause) }

// CutManager cuts the primary's Patroni off from etcd until it has demoted the primary, and for that
// long after it.
func (m *managedBy) CutManager(after time.Duration) error {
	err := m.strike(func(n *servertest.PatroniNode) { n.Link.Cut() })
	if err == nil {
		err = m.c.AwaitDemoted(m.struck)
		time.Sleep(after)
		m.struck.Link.Mend()
	}
	return err
}

func (m *managedBy) strike(do func(*servertest.PatroniNode)) (err error) {
	if m.struck, err = m.c.Primary(); err == nil {
		do(m.struck)
	}
	return err
}

// Switchover asks for another primary.
func (m *managedBy) Switchover() error { return m.c.Switchover() }

// Etcd is the etcd in which they agree on a primary.
func (m *managedBy) Etcd() (url string, server fault.Server) { return m.c.Etcd.URL(), m.c.Etcd }

// Promoted waits until a server was promoted more often than before, and returns how often.
func (m *managedBy) Promoted(before int64) (now int64, err error) { return m.c.TimelineAfter(before) }

// Heal lets the primary that was struck follow the new one.
func (m *managedBy) Heal() error {
	if n := m.struck; n != nil {
		m.struck = nil
		n.Link.Mend()
		n.Continue()
		if !n.Running() {
			n.Restart()
		}
	}
	return m.c.Await()
}
