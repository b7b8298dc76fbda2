package mysqlstore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// TestOpenErrors: what is wrong with a server is said when a store is opened, with
// the cure.
func TestOpenErrors(t *testing.T) {
	t.Parallel()
	server := servertest.MariaDB(t, &servertest.MariaDBOptions{Password: "secret", MaxConnections: 20})
	server.Query("CREATE USER nobody@'127.0.0.1' IDENTIFIED BY 'secret'; GRANT SELECT ON app.* TO nobody@'127.0.0.1'")
	db := openDB(t, server.URL())
	testkit.Must(t, errors.Join(Migrate(t.Context(), db, nil), Migrate(t.Context(), db, &Options{Prefix: "newer"})))
	server.Query("UPDATE newer_meta SET version = 99")
	at := func(was, is string) string { return strings.Replace(server.URL(), was, is, 1) }
	url := server.URL()
	sqltest.OpenErrors(t, map[string]sqltest.Wrong{
		"no URL":       {URL: "postgres://x", Is: ErrURL, Says: "write mysql://"},
		"no database":  {URL: at("/app", ""), Is: ErrURL, Says: "names no database"},
		"parameter":    {URL: url + "?charset=latin1", Is: ErrURL, Says: "charset"},
		"wrong tls":    {URL: url + "?tls=maybe", Is: ErrURL, Says: "skip-verify"},
		"no authority": {URL: url + "?tls-ca=/nowhere", Is: ErrURL, Says: "/nowhere"},
		"no server":    {URL: at(server.Addr(), "127.0.0.1:1"), Is: ErrUnreachable},
		"no socket":    {URL: url + "?socket=/nowhere", Is: ErrUnreachable},
		"no TLS":       {URL: url + "?tls=true", Is: ErrUnreachable, Says: "write tls=false"},
		"password":     {URL: at("secret", "wrong"), Is: ErrUnauthorized, Says: "password is wrong"},
		"database":     {URL: at("/app", "/none"), Is: ErrUnsupported, Says: "create the database"},
		"rights":       {URL: at("root:", "nobody:") + "?prefix=none&migrate=true", Is: ErrUnauthorized, Says: "README"},
		"no tables":    {URL: url + "?prefix=none", Is: ErrNotMigrated, Says: "dibs migrate"},
		"newer tables": {URL: url + "?prefix=newer", Is: ErrNewer, Says: "version 99"},
	}, func(url string) (sqltest.Store, error) { return Open(t.Context(), url, nil) })
	claim := func(s *Store) error {
		answers := make([]store.Answer, 1)
		return s.Claim(t.Context(), []store.Claim{{Key: store.Key{Name: "k"}, Token: store.NewToken(), TTL: time.Minute, Permits: 1, Weight: 1}}, answers)
	}
	s := open(t, server.URL(), nil)
	server.Query("SET GLOBAL read_only = 1")
	server.Query("GRANT SELECT, INSERT, UPDATE, DELETE ON app.* TO nobody@'127.0.0.1'")
	reader, err := Open(t.Context(), at("root:", "nobody:"), &Options{PruneEvery: -1})
	testkit.Must(t, err)
	if err := claim(reader); !errors.Is(err, ErrReadOnly) {
		t.Errorf("a server that takes no writes: %v, want ErrReadOnly", err)
	}
	server.Query("DROP TABLE dibs_key")
	if err := claim(s); !errors.Is(err, ErrNotMigrated) {
		t.Errorf("a table that is gone: %v, want ErrNotMigrated", err)
	}
	testkit.Check(t, errors.Join(reader.Close(), reader.Close()))
	if err := claim(reader); !errors.Is(err, ErrClosed) {
		t.Errorf("%v, want ErrClosed", err)
	}
}

// TestVersions: which servers are too old.
func TestVersions(t *testing.T) {
	t.Parallel()
	for version, old := range map[string]bool{
		"5.7.44-log": true, "8.0.36": false, "9.7.0": false, "10.5.23-MariaDB": true, "10.6.0-MariaDB-log": false,
		"5.5.5-10.4.1-MariaDB": true, "11.4.2-MariaDB-ubu2404": false, "an unknown server": false,
	} {
		if tooOld(version) != old {
			t.Errorf("%s: %v", version, !old)
		}
	}
}

// TestErrorTypes: metrics tell what is wrong with the server.
func TestErrorTypes(t *testing.T) {
	t.Parallel()
	server := servertest.MariaDB(t, &servertest.MariaDBOptions{Password: "secret"})
	db := openDB(t, server.URL())
	testkit.Must(t, Migrate(t.Context(), db, nil))
	server.Query("CREATE USER app@'127.0.0.1' IDENTIFIED BY 'secret'; GRANT SELECT, INSERT, UPDATE, DELETE ON app.* TO app@'127.0.0.1'")
	s, err := Open(t.Context(), strings.Replace(server.URL(), "root:", "app:", 1), &Options{PruneEvery: -1})
	testkit.Must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	query := func(statement string) func() { return func() { server.Query(statement) } }
	sqltest.ErrorTypes(t, s,
		sqltest.Trouble{Type: "read_only", Happen: query("SET GLOBAL read_only = 1"), Over: query("SET GLOBAL read_only = 0")},
		sqltest.Trouble{
			Type:   "unauthorized",
			Happen: query("SET PASSWORD FOR app@'127.0.0.1' = PASSWORD('changed'); KILL USER app"),
			Over:   query("SET PASSWORD FOR app@'127.0.0.1' = PASSWORD('secret')"),
		},
		sqltest.Trouble{Type: "timeout", Happen: server.Pause, Over: server.Continue},
		sqltest.Trouble{Type: "not_migrated", Happen: query("RENAME TABLE dibs_key TO elsewhere"), Over: query("RENAME TABLE elsewhere TO dibs_key")},
		sqltest.Trouble{Type: "unreachable", Happen: server.Kill, Over: server.Restart},
	)
}
