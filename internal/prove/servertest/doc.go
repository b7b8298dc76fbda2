// Package servertest runs real database servers for tests and measurements, because a
// store's promises must hold on the servers that people run.
//
// A test starts a server of its own: on a free loopback port, in a temporary folder, ready
// for use. It ends with the test, even when the test binary is killed; see below.
//
//	func TestRestart(t *testing.T) {
//		server := servertest.Redis(t, &servertest.RedisOptions{Persistence: servertest.AOF})
//		client := connect(server.URL())
//		…
//		server.Kill()    // as when the power fails
//		server.Restart() // the same address and what was on disk
//	}
//
// Redis starts in about 15 ms, PostgreSQL and MariaDB in about 150 ms, so tests rarely need
// to share a server. A [Scope] owns shared servers, and servers of programs that measure:
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
//   - [Redis]: one server, Redis or Valkey; persistence, limits, users, TLS, replicas.
//   - [RedisCluster]: masters and replicas with all slots served.
//   - [RedisSentinel]: a master, its replicas and three sentinels.
//   - [Postgres]: one server; durable or not, limits, settings.
//   - [Etcd]: one member.
//   - [S3]: an object storage on files.
//   - [Patroni]: three PostgreSQL servers, the etcd in which Patroni chooses the primary, and an
//     HAProxy that leads to it.
//   - [PgBouncer]: a pooler in front of it, in transaction or session mode.
//   - [MariaDB]: one server, MariaDB or MySQL; with or without a binary log.
//   - [Gateway]: nginx, Caddy or HAProxy, with a configuration of the test.
//   - [Galera]: two MariaDB servers that take writes at the same time.
//   - [NewClock]: a time of day for servers, which can be set wrong.
//   - [NewWire]: a connection that can be cut, delayed, stopped, or lose replies.
//   - [Dibs]: the program dibs of this tree, for all tests.
//
// Methods pause, continue, kill, stop and restart a server. [RedisServer.Do],
// [PostgresServer.Do] and [MariaDBServer.Do] read and change its data without the client
// under test. Methods without an error result end the test when they fail, so call them
// from the test's goroutine, like testing.T.FailNow.
//
// # Where the programs come from
//
// Programs are found in PATH and in Debian's folders. A missing program is installed with
// apt-get, once for all test binaries, if the test runs as root and apt-get exists; no
// service is started. Otherwise the test fails with a line that says what to install. The
// variables DIBS_REDIS, DIBS_VALKEY, DIBS_POSTGRES, DIBS_PGBOUNCER, DIBS_MARIADB and
// DIBS_MYSQL are paths of programs to use instead. [Install] installs all of them.
//
// No Debian release has MySQL, so it is unpacked from Debian's unstable release, with its
// dependencies, into /var/cache/dibs/servertest (400 MB).
//
// Databases refuse to run as root. If the test runs as root, they run as the user of their
// package, or as nobody.
//
// Creating a database takes seconds, so it is done once for each program. Its folder is
// kept in dibs/servertest of the user's cache folder (100 MB), and each server starts with
// a copy.
//
// # What stays after a test
//
// Only those folders. A server ends with its owner. If the test binary is killed, the
// kernel ends its servers (on Linux), and the next run removes their folders and the
// shared memory of PostgreSQL. Ports stay reserved while a server is down, so a restart
// gets the same port, and no other server appears at that address.
//
// The package is for Unix systems.
package servertest
