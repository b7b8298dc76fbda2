//go:build nightly

package main

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
)

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
