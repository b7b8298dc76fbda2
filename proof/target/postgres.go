//go:build unix

package target

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/internal/wire"
	"github.com/dibs-go/dibs/proof/fault"
)

// Postgres starts a PostgreSQL. A kill of its processes loses nothing that was committed.
func Postgres(owner servertest.Owner) *fault.Target {
	owner.Helper()
	clock := servertest.NewClock(owner)
	s := servertest.Postgres(owner, &servertest.PostgresOptions{NoSync: true, MaxConnections: connections, Clock: clock})
	return &fault.Target{URL: s.URL() + "&migrate=true", Server: s, Clock: clock, Durable: true}
}

// PostgresSynchronous starts a PostgreSQL with a synchronous standby.
func PostgresSynchronous(owner servertest.Owner) *fault.Target {
	owner.Helper()
	t := postgresGroup(owner, 1, "synchronous_standby_names = '*'")
	t.Synchronous = true
	return t
}

// PostgresQuorum starts a PostgreSQL with two standbys, of which one must have a commit.
func PostgresQuorum(owner servertest.Owner) *fault.Target {
	owner.Helper()
	t := postgresGroup(owner, 2, "synchronous_standby_names = 'ANY 1 (*)'")
	t.Synchronous = true
	return t
}

// PostgresLocal starts a PostgreSQL with a synchronous standby, and a store that does not wait for
// it.
func PostgresLocal(owner servertest.Owner) *fault.Target {
	owner.Helper()
	t := postgresGroup(owner, 1, "synchronous_standby_names = '*'")
	t.URL += "&synchronous_commit=local"
	return t
}

// PostgresAsynchronous starts a PostgreSQL with a standby.
func PostgresAsynchronous(owner servertest.Owner) *fault.Target {
	owner.Helper()
	return postgresGroup(owner, 1)
}

// postgresGroup starts a PostgreSQL with standbys. They change roles with each failover: the standby
// that has received most is promoted, and the old primary comes back by pg_rewind. Settings are
// those of all servers.
func postgresGroup(owner servertest.Owner, standbys int, settings ...string) *fault.Target {
	owner.Helper()
	options := servertest.PostgresOptions{NoSync: true, MaxConnections: connections, Standbys: true, Settings: settings}
	g := &group{primary: servertest.Postgres(owner, &options)}
	options.StandbyOf = g.primary
	for range standbys {
		s := &standby{server: servertest.Postgres(owner, &options)}
		g.standbys = append(g.standbys, s)
		var err error
		if s.link, err = wire.Open(g.primary.Addr()); err != nil {
			owner.Fatalf("starting a standby: %v", err)
		}
		owner.Cleanup(func() {
			if err := s.link.Close(); err != nil {
				owner.Logf("closing the wire of a standby: %v", err)
			}
		})
		s.server.Follow(s.link.Addr())
	}
	g.inStep()
	return &fault.Target{URL: g.primary.URL() + "&migrate=true", Server: g, Failover: g, Durable: true}
}

// group is a PostgreSQL primary with its standbys.
type group struct {
	standbys []*standby

	mu      sync.Mutex
	primary *servertest.PostgresServer

	old           *standby // the old primary, which Rebuild makes a standby
	stays         bool     // it went on after the last failover
	wrote, forked int64    // what it had written at its end, and what the new primary began with
}

// standby is a standby, and the wire by which it follows the primary.
type standby struct {
	server *servertest.PostgresServer
	link   *wire.Wire
}

var (
	_ fault.Server   = (*group)(nil)
	_ fault.Failover = (*group)(nil)
)

// Kill ends the primary at once.
func (g *group) Kill() { g.first().Kill() }

// Restart starts the primary again on its data.
func (g *group) Restart() { g.first().Restart() }

// Pause stops the primary.
func (g *group) Pause() { g.first().Pause() }

// Continue lets the primary go on.
func (g *group) Continue() { g.first().Continue() }

func (g *group) first() *servertest.PostgresServer {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.primary
}

// inStep waits until all standbys have what the primary had at the start of the call.
func (g *group) inStep() {
	for _, s := range g.standbys {
		s.server.AwaitStandby(g.primary)
	}
}

// Lag holds back what the primary sends to one of its standbys.
func (g *group) Lag() error {
	g.inStep()
	g.standbys[rand.IntN(len(g.standbys))].link.Set(wire.Trouble{Hold: true}, nil)
	return nil
}

// Promote makes the standby that has received most the primary. The others follow it. The old
// primary is killed first, unless it stays.
func (g *group) Promote(stays bool) (addr string, err error) {
	if g.stays = stays; !stays {
		if g.wrote, err = g.primary.Position(); err != nil {
			return "", err
		}
		g.primary.Kill()
	}
	var next *standby
	most := int64(-1)
	for _, s := range g.standbys {
		s.link.Set(wire.Trouble{Refuse: true}, nil)
		s.link.Reset() // what was on its way is lost
		got, err := s.received()
		if err != nil {
			return "", err
		}
		if got > most {
			next, most = s, got
		}
	}
	next.server.Promote()
	if g.forked, err = next.server.Received(); err != nil {
		return "", err
	}
	g.mu.Lock()
	g.primary, next.server = next.server, g.primary
	g.mu.Unlock()
	g.old = next
	for _, s := range g.standbys {
		s.link.Lead(g.primary.Addr())
		s.link.Set(wire.Trouble{}, nil)
	}
	return g.primary.Addr(), nil
}

// received returns how much a standby has received, once it has stopped receiving.
func (s *standby) received() (int64, error) {
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		rows, err := s.server.Do("SELECT count(*) FROM pg_stat_wal_receiver")
		switch {
		case err != nil:
			return 0, err
		case rows[0][0] == "0":
			return s.server.Received()
		case time.Now().After(deadline):
			return 0, errors.New("a standby goes on to receive, although it is cut off")
		}
	}
}

// Rebuild makes the old primary a standby.
func (g *group) Rebuild() (behind int64, err error) {
	if g.stays {
		if g.wrote, err = g.old.server.Position(); err != nil {
			return 0, fmt.Errorf("looking at the old primary: %w", err)
		}
	}
	g.old.server.Rewind(g.primary, g.old.link.Addr())
	g.inStep()
	return g.wrote - g.forked, nil
}
