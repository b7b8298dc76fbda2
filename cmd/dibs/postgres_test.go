//go:build nightly

package main

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

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
