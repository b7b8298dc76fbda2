//go:build unix

package target

import (
	"strings"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/proof/fault"
)

// Postgres starts a PostgreSQL. A kill of its processes loses nothing that was committed.
func Postgres(owner servertest.Owner) *fault.Target {
	owner.Helper()
	clock := servertest.NewClock(owner)
	s := servertest.Postgres(owner, &servertest.PostgresOptions{NoSync: true, MaxConnections: connections, Clock: clock})
	return &fault.Target{URL: s.URL() + "&migrate=true", Server: s, Clock: clock, Durable: true}
}

// BySQL is in the URL of PostgresBySQL, before the address of the pooler.
const BySQL = "&application_name=by_sql_"

// PostgresBySQL is PostgresSynchronous with a pooler in transaction mode, through which workers may take leases
// by SQL, beside workers in Go. The pooler follows the primary.
func PostgresBySQL(owner servertest.Owner) *fault.Target {
	owner.Helper()
	t := PostgresSynchronous(owner)
	g := t.Failover.(*group[*servertest.PostgresServer])
	pooler := servertest.PgBouncer(owner, g.primary, &servertest.PgBouncerOptions{
		PoolSize: 30, Through: g.follow(owner).Addr(), Settings: []string{"server_login_retry = 1"},
	})
	t.URL += BySQL + pooler.Addr()
	return t
}

// PostgresSynchronous starts a PostgreSQL with a synchronous standby.
func PostgresSynchronous(owner servertest.Owner) *fault.Target {
	owner.Helper()
	t := postgresGroup(owner, 1, "synchronous_standby_names = '*'")
	t.Synchronous = true
	return t
}

// PostgresHosts is PostgresSynchronous with a URL that names both servers. It has no wires.
func PostgresHosts(owner servertest.Owner) *fault.Target {
	owner.Helper()
	t := PostgresSynchronous(owner)
	g := t.Failover.(*group[*servertest.PostgresServer])
	t.URL = strings.Replace(t.URL, g.primary.Addr(), g.primary.Addr()+","+g.standbys[0].server.Addr(), 1)
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

// postgresGroup starts a PostgreSQL with standbys. The old primary comes back by pg_rewind.
// Settings are those of all servers.
func postgresGroup(owner servertest.Owner, standbys int, settings ...string) *fault.Target {
	owner.Helper()
	options := servertest.PostgresOptions{NoSync: true, MaxConnections: connections, Standbys: true, Settings: settings}
	primary := servertest.Postgres(owner, &options)
	options.StandbyOf = primary
	g := newGroup(owner, primary, standbys, func() *servertest.PostgresServer { return servertest.Postgres(owner, &options) })
	return &fault.Target{URL: primary.URL() + "&migrate=true", Server: g, Failover: g, Durable: true}
}
