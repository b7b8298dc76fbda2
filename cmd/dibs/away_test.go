//go:build nightly

package main

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// unusable is a store that cannot be used, and the message about it.
type unusable struct{ url, names, says string }

// idle returns an origin that must get no request.
func idle(t *testing.T) *counter {
	t.Helper()
	origin := newCounter(t, nil)
	t.Cleanup(func() { // when all below have ended
		if origin.total() != 0 {
			t.Error("something ran")
		}
	})
	return origin
}

// addr returns the address of the origin.
func (c *counter) addr() string { return strings.TrimPrefix(c.URL, "http://") }

// checkUnusable: a store that cannot be used ends every command with 69, and a line that
// names the server without its password. Nothing runs.
func checkUnusable(t *testing.T, origin *counter, all map[string]unusable) {
	for name, test := range all {
		for _, args := range [][]string{
			{"proxy", "--listen", "127.0.0.1:0", "--upstream", origin.URL},
			{"run", "k", "--", "touch", "ran"},
			{"ls"},
			{"forget", "k", "--yes"},
			{"doctor"},
			{"demo", "--exit"},
		} {
			t.Run(args[0]+" "+name, func(t *testing.T) {
				t.Parallel()
				// Flags come before the key and the command.
				args := append([]string{args[0], "--store", test.url}, args[1:]...)
				code, stdout, stderr := run(t, args...)
				quiet := stdout == "" || args[0] == "doctor" // which says that the URL is an argument
				if code != 69 || !quiet || !strings.Contains(stderr, test.names) || !strings.Contains(stderr, test.says) {
					t.Errorf("%d %q %q; want %q", code, stdout, stderr, test.says)
				}
				if strings.Count(stderr, "\n") != 1 {
					t.Errorf("it is not a line: %q", stderr)
				}
				if strings.Contains(stdout+stderr, secret) {
					t.Errorf("the password is in %q %q", stdout, stderr)
				}
			})
		}
	}
}

// checkReplica: a command that writes is refused by a server that takes no writes. A command that
// changes nothing may use one.
func checkReplica(t *testing.T, url string) {
	t.Helper()
	code, stdout, stderr := run(t, "run", "--store", url, "k", "--", "touch", "ran")
	if code != 69 || stdout != "" || !strings.Contains(stderr, "takes no writes") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("run on a replica: %d %q %q", code, stdout, stderr)
	}
	if code, _, stderr := run(t, "ls", "--store", url); code != 0 {
		t.Errorf("ls on a replica: %d %q", code, stderr)
	}
}

// TestAway: see checkAway.
func TestAway(t *testing.T) {
	t.Run("redis", redisAway)
	t.Run("postgres", postgresAway)
	t.Run("mariadb", mariadbAway)
}

// secret must not appear in any output.
const secret = "pass-word"

// TestUnusableRedis: see checkUnusable.
func TestUnusableRedis(t *testing.T) {
	t.Parallel()
	gone := servertest.Redis(t, nil)
	gone.Kill()
	paused := servertest.Redis(t, nil)
	paused.Pause()
	locked := servertest.Redis(t, &servertest.RedisOptions{Password: "another"})
	origin := idle(t)
	checkUnusable(t, origin, map[string]unusable{
		"gone":     {"redis://:" + secret + "@" + gone.Addr(), gone.Addr(), "refused"},
		"paused":   {"redis://:" + secret + "@" + paused.Addr(), paused.Addr(), "has not answered"},
		"password": {"redis://:" + secret + "@" + locked.Addr(), locked.Addr(), "the password is wrong"},
		"other":    {"redis://:" + secret + "@" + origin.addr(), origin.addr(), "is not a Redis"},
	})
}

// redisAway: see checkAway.
func redisAway(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]struct {
		begin, end func(*servertest.RedisServer)
	}{
		"down":      {(*servertest.RedisServer).Kill, (*servertest.RedisServer).Restart},
		"hanging":   {(*servertest.RedisServer).Pause, (*servertest.RedisServer).Continue},
		"read-only": {func(s *servertest.RedisServer) { s.Must("REPLICAOF", "127.0.0.1", 1) }, (*servertest.RedisServer).Promote},
		"full":      {func(s *servertest.RedisServer) { s.Must("CONFIG", "SET", "maxmemory", 1) }, func(s *servertest.RedisServer) { s.Must("CONFIG", "SET", "maxmemory", 0) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t, &servertest.RedisOptions{Persistence: servertest.AOF})
			checkAway(t, server.URL(), func() { trouble.begin(server) }, func() { trouble.end(server) })
		})
	}
}

// TestPasswordStaysSecret: neither a proxy's line nor what the demo starts shows
// the password of the store, which others can read among a process's arguments.
func TestPasswordStaysSecret(t *testing.T) {
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server := servertest.Redis(t, &servertest.RedisOptions{Password: secret})
		checkPassword(t, server.URL(), "redis://"+server.Addr()+"/0")
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		checkPassword(t, ownSchema(t), "postgres://postgres@"+postgres().Addr()+"/postgres?")
	})
}

func checkPassword(t *testing.T, url, shown string) {
	store := []string{"DIBS_STORE=" + url}
	p := startWith(t, store, "proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1")
	p.awaitServing(t)
	if line := p.stdout.String(); !strings.Contains(line, "store "+shown) || strings.Contains(line, secret) {
		t.Errorf("the proxy prints %q", line)
	}
	demo := startWith(t, store, "demo")
	testkit.Eventually(t, "the demo continues", func() bool { return strings.Contains(demo.stdout.String(), "finds your key:\n\n") })
	out, err := exec.Command("ps", "-e", "-o", "args=").Output()
	testkit.Must(t, err)
	if !strings.Contains(string(out), "--namespace demo-") || strings.Contains(string(out), secret) {
		t.Errorf("among the processes:\n%s", out)
	}
	if said := demo.stdout.String() + demo.stderr.String(); strings.Contains(said, secret) || !strings.Contains(said, "show --namespace") {
		t.Errorf("the demo prints\n%s", said)
	}
	_, rest, _ := strings.Cut(demo.stdout.String(), "The page for operators")
	_, page, _ := strings.Cut(rest, "http://")
	page, _, _ = strings.Cut(page, "\n")
	if res, err := http.Get("http://" + page); err != nil || res.StatusCode != http.StatusOK || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/html") {
		t.Errorf("the demo names the page %q: %v, %v", page, res, err)
	} else {
		res.Body.Close()
	}
	demo.signal(t, syscall.SIGTERM)
	demo.code(t)
}

// TestReloadOnRedis is TestReload with a server that pauses for a while.
func TestReloadOnRedis(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	checkReload(t, server.URL(), server.Pause, server.Continue)
}

// postgres is a server on which each test has a schema of its own.
var postgres = sync.OnceValue(func() *servertest.PostgresServer {
	return servertest.Postgres(scope, &servertest.PostgresOptions{NoSync: true, Password: secret, MaxConnections: 200})
})

var schemas atomic.Int64

// ownSchema returns the URL of a store in a new schema of the server postgres.
func ownSchema(t *testing.T) string {
	t.Helper()
	return migrated(t, fmt.Sprintf("%s&schema=own%d", postgres().URL(), schemas.Add(1)))
}

// TestUnusablePostgres: see checkUnusable.
func TestUnusablePostgres(t *testing.T) {
	t.Parallel()
	withPassword := &servertest.PostgresOptions{NoSync: true, Password: secret}
	gone := servertest.Postgres(t, withPassword)
	gone.Kill()
	paused := servertest.Postgres(t, withPassword)
	paused.Pause()
	there := postgres()
	standby := servertest.Postgres(t, withPassword)
	migrated(t, standby.URL())
	readOnly(t, standby, "on")
	crowded := servertest.Postgres(t, &servertest.PostgresOptions{
		NoSync: true, Password: secret, MaxConnections: 4,
		Settings: []string{"superuser_reserved_connections = 3"},
	})
	crowded.Query("CREATE ROLE app LOGIN CONNECTION LIMIT 0 PASSWORD '" + secret + "'")
	origin := idle(t)
	instead := func(url, was, is string) string { return strings.Replace(url, was, is, 1) }
	checkReplica(t, standby.URL())
	checkUnusable(t, origin, map[string]unusable{
		"gone":     {gone.URL(), gone.Addr(), "refused"},
		"paused":   {paused.URL(), paused.Addr(), "cannot be reached"},
		"password": {instead(there.URL(), secret, secret+"x"), there.Addr(), "the password is wrong"},
		"user":     {instead(there.URL(), "//postgres:", "//nobody:"), there.Addr(), "refuses this user"},
		"database": {instead(there.URL(), "/postgres?", "/missing?"), there.Addr(), "create the database, or name another one"},
		"crowded":  {instead(crowded.URL(), "//postgres:", "//app:"), crowded.Addr(), "no connection left"},
		"other":    {"postgres://app:" + secret + "@" + origin.addr() + "/app?sslmode=disable", origin.addr(), "cannot be reached"},
	})
}

// readOnly sets whether the server takes no writes. Sessions read a new default late, so they are
// ended once a new one has it.
func readOnly(t *testing.T, s *servertest.PostgresServer, value string) {
	t.Helper()
	s.Query("ALTER SYSTEM SET default_transaction_read_only = " + value)
	s.Query("SELECT pg_reload_conf()")
	testkit.Eventually(t, "the setting is in force", func() bool { return s.Query("SHOW default_transaction_read_only")[0][0] == value })
	s.Query("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")
}

// postgresAway: see checkAway.
func postgresAway(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]struct {
		begin, end func(*testing.T, *servertest.PostgresServer)
	}{
		"down": {
			func(_ *testing.T, s *servertest.PostgresServer) { s.Kill() },
			func(_ *testing.T, s *servertest.PostgresServer) { s.Restart() },
		},
		"hanging": {
			func(_ *testing.T, s *servertest.PostgresServer) { s.Pause() },
			func(_ *testing.T, s *servertest.PostgresServer) { s.Continue() },
		},
		"read-only": {
			func(t *testing.T, s *servertest.PostgresServer) { readOnly(t, s, "on") },
			func(t *testing.T, s *servertest.PostgresServer) { readOnly(t, s, "off") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Postgres(t, &servertest.PostgresOptions{Password: secret})
			checkAway(t, migrated(t, server.URL()), func() { trouble.begin(t, server) }, func() { trouble.end(t, server) })
		})
	}
	t.Run("failover", func(t *testing.T) {
		t.Parallel()
		options := servertest.PostgresOptions{NoSync: true, Password: secret, Standbys: true}
		old := servertest.Postgres(t, &options)
		options.StandbyOf = old
		next := servertest.Postgres(t, &options)
		next.AwaitStandby(old)
		hosts := strings.Replace(old.URL(), old.Addr(), old.Addr()+","+next.Addr(), 1)
		checkAway(t, migrated(t, hosts), func() { next.AwaitStandby(old); old.Kill() }, next.Promote)
	})
}

// mariadb is a server on which each test has tables of its own.
var mariadb = sync.OnceValue(func() *servertest.MariaDBServer {
	return servertest.MariaDB(scope, &servertest.MariaDBOptions{NoSync: true, Password: secret, MaxConnections: 200})
})

// ownPrefix returns the URL of a store whose tables have a new prefix.
func ownPrefix(t *testing.T, url string) string {
	t.Helper()
	return migrated(t, fmt.Sprintf("%s?prefix=own%d", url, schemas.Add(1)))
}

// TestUnusableMariaDB: see checkUnusable.
func TestUnusableMariaDB(t *testing.T) {
	t.Parallel()
	withPassword := &servertest.MariaDBOptions{NoSync: true, Password: secret}
	gone := servertest.MariaDB(t, withPassword)
	gone.Kill()
	paused := servertest.MariaDB(t, withPassword)
	paused.Pause()
	there := mariadb()
	there.Query("CREATE USER 'app'@'127.0.0.1' IDENTIFIED BY '" + secret + "'; GRANT ALL ON app.* TO 'app'@'127.0.0.1'")
	// The superuser may write nevertheless.
	replica := servertest.MariaDB(t, withPassword)
	migrated(t, replica.URL())
	replica.Query("CREATE USER 'app'@'127.0.0.1' IDENTIFIED BY '" + secret + "'; GRANT ALL ON app.* TO 'app'@'127.0.0.1'; SET GLOBAL read_only = 1")
	origin := idle(t)
	instead := func(url, was, is string) string { return strings.Replace(url, was, is, 1) }
	checkReplica(t, instead(replica.URL(), "//root:", "//app:"))
	checkUnusable(t, origin, map[string]unusable{
		"gone":     {gone.URL(), gone.Addr(), "cannot be reached"},
		"paused":   {paused.URL(), paused.Addr(), "cannot be reached"},
		"password": {instead(there.URL(), secret, secret+"x"), there.Addr(), "the password is wrong"},
		"database": {instead(instead(there.URL(), "/app", "/missing"), "//root:", "//app:"), there.Addr(), "mysqlstore: the server "},
		"other":    {"mysql://app:" + secret + "@" + origin.addr() + "/app", origin.addr(), "cannot be reached"},
	})
}

// mariadbAway: see checkAway.
func mariadbAway(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]struct {
		begin, end func(*servertest.MariaDBServer)
	}{
		"down":      {(*servertest.MariaDBServer).Kill, (*servertest.MariaDBServer).Restart},
		"hanging":   {(*servertest.MariaDBServer).Pause, (*servertest.MariaDBServer).Continue},
		"read-only": {func(s *servertest.MariaDBServer) { s.Query("SET GLOBAL read_only = 1") }, func(s *servertest.MariaDBServer) { s.Query("SET GLOBAL read_only = 0") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.MariaDB(t, &servertest.MariaDBOptions{Password: secret})
			server.Query("CREATE USER 'app'@'127.0.0.1' IDENTIFIED BY '" + secret + "'; GRANT ALL ON app.* TO 'app'@'127.0.0.1'")
			url := strings.Replace(server.URL(), "//root:", "//app:", 1)
			checkAway(t, migrated(t, url), func() { trouble.begin(server) }, func() { trouble.end(server) })
		})
	}
}

// TestAnswerThatMariaDBNeverTakes: an answer that fits into max-stored and not into a packet
// of the server leaves a tombstone, and its retry does not run again.
func TestAnswerThatMariaDBNeverTakes(t *testing.T) {
	t.Parallel()
	server := servertest.MariaDB(t, &servertest.MariaDBOptions{NoSync: true, Settings: []string{"max_allowed_packet = 16M"}})
	for _, size := range []int{17 << 20, 16 << 20} {
		text := make([]byte, size)
		rand.Read(text) // which cannot be compressed
		runs := 0
		origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			runs++
			_, _ = w.Write(text)
		}))
		defer origin.Close()
		p := startProxy(t, origin.URL, ownPrefix(t, server.URL()), "DIBS_PROXY_MAX_STORED=64MiB")
		if r := mustPost(t, p.url, `"k"`, "x"); r.status != 200 || len(r.body) != size {
			t.Errorf("%d bytes: the first answer was %d with %d bytes", size, r.status, len(r.body))
		}
		if r := mustPost(t, p.url, `"k"`, "x"); r.status != 410 || runs != 1 {
			t.Errorf("%d bytes: the retry was answered %d, after %d runs", size, r.status, runs)
		}
	}
}
