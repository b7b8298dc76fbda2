package main

import (
	"context"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/proof/fault"
	"github.com/dibs-go/dibs/proof/peers"
	"github.com/dibs-go/dibs/proof/target"
	"github.com/dibs-go/dibs/proof/torture"
)

// opener opens a lock at the URL of a store. ttl is for how long a dead holder keeps it, where
// the lock has such a time.
type opener func(ctx context.Context, url string, ttl time.Duration) (torture.Locker, func() error, error)

// contender is one lock on one server.
type contender struct {
	name   string
	module string // whose version is shown; "" if it is written by hand
	server string
	start  func(servertest.Owner) *fault.Target
	open   opener
	// promises is what its documentation says, in short, and link is where. setUp is how it is
	// set up, where there is a choice.
	promises, link, setUp string
	// says has, by the group of faults, why two holders are no surprise to readers of its
	// documentation.
	says map[string]string
	// calm says that it runs without faults only, because its server is the fault.
	calm bool
}

// group is faults that strike in one run.
type group struct{ name, faults string }

// groups are the runs of each contender. A group of which no fault applies to its server is left
// out.
var groups = []group{
	{"none", "none"},
	{"stop", "stop"}, // with the crashes and freezes of the workers
	{"kill", "kill"}, // with these, too, but a kill often ends a freeze
	{"cut", "cut"},
	{"partition", "partition"},
	{"loss", "delay,lost-requests,lost-replies,lost-reply"},
	{"disconnect", "kill-connections"},
	{"restart", "server-kill,server-stop"},
	{"failover", "failover"},
	{"clock", "server-clock"},
	{"file", "file"},
}

// What the documentations say, in short.
const (
	distlock  = "https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/"
	redisLost = "Redis's page on locks says that a replica which lacks the lock lets a second holder in"
	deletes   = "Redis's page on SET says that a holder which comes late deletes the lock of the next one, and advises a token"
	redisTime = "Redis's page on locks says that times to live go by the wall clock, whose steps let a second holder in"
	ended     = "the lock ends with its session; the client learns of that at its next call, and does not tell the holder"
	shared    = "two clients share one session, which may lock again what it has locked, and unlock only what it has locked"
	revoked   = "etcd's page says that the server can revoke a lease while the client still believes in it"
	ownClock  = "[reliability.md](reliability.md) says that leases end early if the server's clock steps"
)

var redisSays = map[string]string{"failover": redisLost, "clock": redisTime}

var sessionSays = map[string]string{"cut": ended, "partition": ended, "loss": ended, "disconnect": ended, "restart": ended}

// contenders returns all contenders, in the order of the page.
func contenders() []contender {
	startRedis := func(owner servertest.Owner) *fault.Target { return target.Redis(owner, nil) }
	startMariaDB := func(owner servertest.Owner) *fault.Target { return target.MariaDB(owner, nil) }
	startFile := func(owner servertest.Owner) *fault.Target { return target.SQLite(owner, false) }
	const (
		redis, postgres, mariadb = "Redis with a replica, `appendfsync always`", "PostgreSQL", "MariaDB"

		reliability = "reliability.md"
		promise     = "one holder while the store keeps its data; after a loss, the fence refuses the late writer"
	)
	return []contender{
		{
			name: "set-nx", server: redis, start: startRedis, open: openSetNX(false),
			promises: "a lock that is released after its time to live; the page itself advises a token and a script", link: "https://redis.io/docs/latest/commands/set/#patterns",
			setUp: "`SET key 1 NX PX 2000`, then `DEL key`, tried every 20 ms",
			says: map[string]string{
				"none": deletes, "stop": deletes, "kill": deletes,
				"cut": deletes, "partition": deletes, "loss": deletes, "disconnect": deletes, "restart": deletes,
				"failover": redisLost, "clock": redisTime,
			},
		},
		{
			name: "set-nx-token", server: redis, start: startRedis, open: openSetNX(true),
			promises: "mutual exclusion on one server until the time to live is over", link: distlock,
			setUp: "`SET key token NX PX 2000`, then a script that compares and deletes, tried every 20 ms; the holder stops when its time is over",
			says:  redisSays,
		},
		{
			name: "redsync", module: "github.com/go-redsync/redsync/v4", server: redis, start: startRedis, open: onRedis(peers.Redsync),
			promises: "nobody else gets the lock until it is unlocked, or until `Until`", link: "https://pkg.go.dev/github.com/go-redsync/redsync/v4",
			setUp: "one pool, as in its README; the holder stops at `Until`", says: redisSays,
		},
		{
			name: "redislock", module: "github.com/bsm/redislock", server: redis, start: startRedis,
			open: onRedis(func(c *goredis.Client, ttl time.Duration) torture.Locker {
				return peers.Redislock(c, ttl, retryEvery, true)
			}),
			promises: "a lock with a time to live, which its holder may refresh", link: "https://pkg.go.dev/github.com/bsm/redislock",
			setUp: "`LinearBackoff` of 20 ms; the holder asks for `TTL` once and stops when it is over", says: redisSays,
		},
		{
			name: "rueidislock", module: "github.com/redis/rueidis", server: redis, start: startRedis, open: openRueidislock,
			promises: "the lock is extended, and its context is cancelled immediately when it is not held any more", link: "https://pkg.go.dev/github.com/redis/rueidis/rueidislock",
			setUp: "`KeyMajority: 1` and `NoLoopTracking`, as its README has it for one server; a `TryNextAfter` of 2 s, so that a slow machine does not count", says: redisSays,
		},
		{
			name: "dibs-redis", server: redis, start: startRedis, open: openDibs, promises: promise, link: reliability,
			says: map[string]string{"failover": "[reliability.md](reliability.md) says that a failover to a replica that lagged loses grants", "clock": ownClock},
		},
		{
			name: "advisory-lock", server: postgres, start: target.Postgres, open: openAdvisory,
			promises: "held until it is released or the session ends", link: "https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS",
			setUp: "`pg_advisory_lock` on a connection for each lock", says: sessionSays,
		},
		{
			name: "advisory-lock-pooler", server: "PostgreSQL behind PgBouncer in transaction mode", start: pooled, open: openAdvisory, calm: true,
			promises: "nothing: by PgBouncer's page, session-level advisory locks never work in transaction mode", link: "https://www.pgbouncer.org/features.html",
			setUp: "the same program; only the port is another one",
			says:  map[string]string{"none": shared},
		},
		{
			name: "pglock", module: "cirello.io/pglock", server: postgres, start: target.Postgres, open: openPglock,
			promises: "while the application runs, the lock does not expire; `Do` cancels its context when a heartbeat finds that it is lost", link: "https://pkg.go.dev/cirello.io/pglock",
			setUp: "lib/pq, a heartbeat at each third of the lease, `Do`",
		},
		{
			name: "row-with-expiry", server: postgres, start: target.Postgres, open: openRow,
			promises: "no library: `INSERT … ON CONFLICT DO UPDATE … WHERE until < now()` is atomic, so that one caller has the row until its time is over", link: "https://www.postgresql.org/docs/current/sql-insert.html#SQL-ON-CONFLICT",
			setUp: "tried every 20 ms; the holder stops when its time is over",
			says:  map[string]string{"clock": "`now()` is the server's wall clock"},
		},
		{
			name: "dibs-postgres", server: postgres, start: target.Postgres, open: openDibs, promises: promise, link: reliability,
			says: map[string]string{"clock": ownClock},
		},
		{
			name: "get-lock", server: mariadb, start: startMariaDB, open: openNamed,
			promises: "held until it is released or the connection ends, normally or not", link: "https://mariadb.com/kb/en/get_lock/",
			setUp: "`GET_LOCK` on a connection for each lock", says: sessionSays,
		},
		{
			name: "dibs-mariadb", server: mariadb, start: startMariaDB, open: openDibs, promises: promise, link: reliability,
			says: map[string]string{"clock": ownClock},
		},
		{name: "dibs-sqlite", server: "a file", start: startFile, open: openDibs, promises: promise, link: reliability},
		{name: "dibs-serve", server: "`dibs serve` on a file", start: target.Serve, open: openDibs, promises: promise, link: reliability},
		{
			name: "etcd", module: "go.etcd.io/etcd/client/v3", server: "etcd, one member", start: startEtcd, open: openEtcd,
			promises: "a lock as long as the session's lease; the page says that the lease alone is not mutual exclusion, and that writes must be checked by revision",
			link:     "https://etcd.io/docs/v3.6/learning/why/#notes-on-the-usage-of-lock-and-lease",
			setUp:    "a `Session` of 2 s and a `Mutex` for each lock; the fence is the revision",
			says:     map[string]string{"stop": revoked, "kill": revoked, "cut": revoked, "partition": revoked, "loss": revoked, "restart": revoked},
		},
		{name: "dibs-etcd", server: "etcd, one member", start: startEtcd, open: openDibsEtcd, promises: promise, link: reliability},
	}
}
