//go:build unix

package target

import (
	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/proof/fault"
)

// PostgresPatroni starts three PostgreSQL servers under Patroni, behind the address of an HAProxy.
func PostgresPatroni(owner servertest.Owner, o *servertest.PatroniOptions) *fault.Target {
	owner.Helper()
	c, synchronous := patroni(owner, o)
	return &fault.Target{URL: c.URL() + "&migrate=true", Manager: &managedBy{c: c}, Durable: true, Synchronous: synchronous}
}

// PostgresPatroniHosts is PostgresPatroni with a URL that names the servers. It has no wires.
func PostgresPatroniHosts(owner servertest.Owner, o *servertest.PatroniOptions) *fault.Target {
	owner.Helper()
	c, synchronous := patroni(owner, o)
	return &fault.Target{URL: c.HostsURL() + "&migrate=true", Manager: &managedBy{c: c}, Durable: true, Synchronous: synchronous}
}

func patroni(owner servertest.Owner, o *servertest.PatroniOptions) (c *servertest.PatroniCluster, synchronous bool) {
	owner.Helper()
	options := servertest.PatroniOptions{}
	if o != nil {
		options = *o
	}
	options.MaxConnections = connections
	return servertest.Patroni(owner, &options), !options.Asynchronous
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

// CutManager cuts the primary's Patroni off from etcd.
func (m *managedBy) CutManager() error {
	return m.strike(func(n *servertest.PatroniNode) { n.Link.Cut() })
}

func (m *managedBy) strike(do func(*servertest.PatroniNode)) (err error) {
	if m.struck, err = m.c.Primary(); err == nil {
		do(m.struck)
	}
	return err
}

// Switchover asks for another primary.
func (m *managedBy) Switchover() error { return m.c.Switchover() }

// Etcd is the etcd in which the Patronis agree.
func (m *managedBy) Etcd() (url string, server fault.Server) { return m.c.Etcd.URL(), m.c.Etcd }

// Promoted returns how often a server was promoted so far, when that is more than it was.
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
