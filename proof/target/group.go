//go:build unix

package target

import (
	"fmt"
	"math/rand/v2"
	"sync"

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
