//go:build unix

package target

import (
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/proof/fault"
)

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
