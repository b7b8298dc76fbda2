// Package servertest runs real database servers for tests and measurements, so
// that what a store promises is checked against the server that people run and
// not against an imitation of it.
//
// A test asks for a server and gets one of its own: on a free loopback port, in
// a temporary folder, ready to be used, and gone when the test ends (also when
// the test binary is killed; see below).
//
//	func TestRestart(t *testing.T) {
//		server := servertest.Redis(t, &servertest.RedisOptions{Persistence: servertest.AOF})
//		client := connect(server.URL())
//		…
//		server.Kill()    // as when the power fails
//		server.Restart() // the same address and what was on disk
//	}
//
// Redis starts in about 15 ms, PostgreSQL and MariaDB in about 150, so there is
// seldom a reason to share one. Where there is, or where there is no test (a
// program that measures), a [Scope] owns the servers:
//
//	func TestMain(m *testing.M) {
//		scope := servertest.NewScope()
//		shared = sync.OnceValue(func() *servertest.RedisServer { return servertest.Redis(scope, nil) })
//		code := m.Run()
//		scope.Close()
//		os.Exit(code)
//	}
//
// # What there is
//
//   - [Redis]: one server, of Redis or of Valkey; persistence, limits, users,
//     TLS, a replica of another.
//   - [RedisCluster]: masters and replicas with all slots served.
//   - [RedisSentinel]: a master, its replicas and three sentinels that watch them.
//   - [Postgres]: one server; durable or not, limits, settings.
//   - [PgBouncer]: a pooler before it, in transaction or session mode.
//   - [MariaDB]: one server, of MariaDB or of MySQL; with a binary log or not.
//   - [NewClock]: the time of day for servers that are started with it, which can be set wrong.
//   - [NewWire]: a connection that can be cut, delayed, hung, or lose the replies.
//
// Servers are paused, continued, killed, stopped and restarted by methods of
// their own; [RedisServer.Do], [PostgresServer.Do] and [MariaDBServer.Do] read
// and change what a server holds without any client under test. Methods that
// return no error end the test when they fail, so like testing.T.FailNow they
// are called from the test's own goroutine.
//
// # Where the programs come from
//
// A program is looked for in PATH and where Debian puts it. One that is missing
// is installed with apt-get if the test runs as root on a system that has it,
// once, whatever the number of test binaries; no service is set up or started.
// Otherwise the test fails with one line that says what to install. DIBS_REDIS,
// DIBS_VALKEY, DIBS_POSTGRES, DIBS_PGBOUNCER, DIBS_MARIADB and DIBS_MYSQL name
// the programs to use instead, as paths. [Install] brings all that are needed.
//
// No release of Debian has MySQL: there it is unpacked from the unstable one, with
// all it needs and beside the system, in /var/cache/dibs/servertest (400 MB).
//
// Databases refuse to run as root: where the test does, they run as the user
// that their package made, or else as nobody.
//
// To set up a database takes seconds, so it is done once for each program; what
// then was in its folder is kept below the user's cache folder, in
// dibs/servertest (100 MB), and each server starts with a copy.
//
// # What is left behind
//
// Nothing but those. A server ends with its owner. Should the test binary be
// killed, the kernel ends its servers (on Linux), and the next run removes their
// folders and the shared memory of PostgreSQL. Ports stay reserved while a server
// is down, so that a restart finds its own again and nobody else is met under its
// address.
//
// The package is for Unix systems.
package servertest
