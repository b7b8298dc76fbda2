package mysqlstore

import (
	"errors"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// leastRights is what the README says a user needs.
const leastRights = `GRANT SELECT, INSERT, UPDATE, DELETE ON app.@key TO app;
GRANT SELECT, INSERT, UPDATE, DELETE ON app.@holder TO app;
GRANT SELECT, INSERT, UPDATE, DELETE ON app.@waiter TO app;
GRANT SELECT, INSERT, UPDATE, DELETE ON app.@progress TO app;
GRANT SELECT, INSERT, UPDATE, DELETE ON app.@record TO app;
GRANT SELECT, UPDATE ON app.@meta TO app;`

// TestCheck: what is wrong with a server's set-up is found, and nothing else.
func TestCheck(t *testing.T) {
	t.Parallel()
	server := servertest.MariaDB(t, &servertest.MariaDBOptions{BinaryLog: true, MaxConnections: 40})
	const dangerous, advice = store.SeverityDangerous, store.SeverityAdvice
	do := func(text string) func(testing.TB, sqltest.Store) {
		return func(_ testing.TB, s sqltest.Store) { server.Query(s.(*Store).names.sql(text)) }
	}
	sqltest.Check(t, server, map[string]sqltest.Setup{
		"sound": {},
		"read-only": {
			Undo:  []string{"SET GLOBAL read_only = 0"},
			Store: do("SET GLOBAL read_only = 1"),
			Finds: sqltest.Found("read-only", dangerous, "read_only"),
		},
		"no flush": {
			Do:    []string{"SET GLOBAL innodb_flush_log_at_trx_commit = 0"},
			Undo:  []string{"SET GLOBAL innodb_flush_log_at_trx_commit = 1"},
			Finds: sqltest.Found("durability", dangerous, "is 0"),
		},
		"no sync": {
			Do:    []string{"SET GLOBAL innodb_flush_log_at_trx_commit = 2"},
			Undo:  []string{"SET GLOBAL innodb_flush_log_at_trx_commit = 1"},
			Finds: sqltest.Found("durability", advice, "is 2"),
		},
		"binary log": {
			Do:    []string{"SET GLOBAL sync_binlog = 0"},
			Undo:  []string{"SET GLOBAL sync_binlog = 1"},
			Finds: sqltest.Found("binary-log", advice, "sync_binlog is 0"),
		},
		"packet": {
			Do:    []string{"SET GLOBAL max_allowed_packet = 1048576"},
			Undo:  []string{"SET GLOBAL max_allowed_packet = 16777216"},
			Finds: sqltest.Found("packet", advice, "1048576"),
		},
		"clock set back": {
			Store: do("UPDATE @meta SET fence=" + clock + "+3630000000"),
			Finds: sqltest.Found("clock", dangerous, "1h0m"),
		},
		"missing index": {
			Store: do("ALTER TABLE @waiter DROP KEY waiter_token"),
			Finds: sqltest.Found("tables", dangerous, "waiter_token"),
		},
		"other engine": {
			Store: do("ALTER TABLE @progress ENGINE=MyISAM"),
			Finds: sqltest.Found("tables", dangerous, "progress (MyISAM)"),
		},
		"other version": {
			Store: do("UPDATE @meta SET version=0"),
			Finds: sqltest.Found("tables", dangerous, "version 0"),
		},
		"no tables": {
			Store: func(_ testing.TB, s sqltest.Store) { drop(server, s.(*Store).names.prefix) },
			Finds: sqltest.Found("tables", dangerous, "version 0"),
		},
		"connections": {
			Store: func(t testing.TB, _ sqltest.Store) {
				db := openDB(t, server.URL())
				for range 36 {
					conn, err := db.Conn(t.Context())
					testkit.Must(t, err)
					t.Cleanup(func() { _ = conn.Close() })
				}
			},
			Finds: sqltest.Found("connections", advice, "of 40 connections are in use"),
		},
	}, func(t *testing.T) sqltest.Store {
		return open(t, server.URL(), &Options{Prefix: testkit.Own(), PruneEvery: -1})
	})
}

// TestLeastRights: what the README says a user needs is enough, on both kinds of
// servers; and what may not be looked at is said.
func TestLeastRights(t *testing.T) {
	onServers(t, func(t *testing.T, server *servertest.MariaDBServer) {
		owner := open(t, server.URL(), &Options{Prefix: testkit.Own()})
		user := owner.names.prefix
		server.Query("CREATE USER " + user + "@'127.0.0.1' IDENTIFIED BY 'secret'")
		server.Query(strings.ReplaceAll(owner.names.sql(leastRights), "TO app", "TO "+user+"@'127.0.0.1'"))
		url := strings.Replace(server.URL(), "root@", user+":secret@", 1)
		s, err := Open(t.Context(), url, &Options{Prefix: owner.names.prefix, Migrate: true})
		testkit.Must(t, err)
		defer s.Close()
		sqltest.Work(t, s)
		if _, err := s.Prune(t.Context(), 0); err != nil {
			t.Error(err)
		}
		got, err := s.Check(t.Context())
		testkit.Must(t, err)
		if len(got) == 0 || got[len(got)-1].Severity != store.SeverityUnchecked || got[len(got)-1].Name != "transactions" {
			t.Errorf("found %+v, want that transactions are unchecked", got)
		}
	})
}

// TestEveryRight: a user that lacks one of the rights of the README cannot open the store, and the
// error and Check name what it lacks.
func TestEveryRight(t *testing.T) {
	onServers(t, func(t *testing.T, server *servertest.MariaDBServer) {
		owner := open(t, server.URL(), &Options{Prefix: testkit.Own()})
		prefix := owner.names.prefix
		user := prefix + "@'127.0.0.1'"
		server.Query("CREATE USER " + user + " IDENTIFIED BY 'secret'")
		server.Query(strings.ReplaceAll(owner.names.sql(leastRights), "TO app", "TO "+user))
		url := strings.Replace(server.URL(), "root@", prefix+":secret@", 1)
		able := open(t, url, &Options{Prefix: prefix, ReadOnly: true})
		for _, table := range tables {
			for _, verb := range []string{"SELECT", "INSERT", "UPDATE", "DELETE"} {
				if table == "meta" && (verb == "INSERT" || verb == "DELETE") {
					continue
				}
				on := verb + " ON app." + owner.names.table(table)
				server.Query("REVOKE " + on + " FROM " + user)
				s, err := Open(t.Context(), url, &Options{Prefix: prefix})
				if err == nil {
					s.Close()
				}
				if !errors.Is(err, ErrUnauthorized) || !strings.Contains(err.Error(), table) {
					t.Errorf("without %s: %v", on, err)
				}
				found, err := able.Check(t.Context())
				named := false
				for _, f := range found {
					named = named || f.Name == "rights" && strings.Contains(f.What, owner.names.table(table))
				}
				if err == nil && !named {
					t.Errorf("without %s, Check found %+v", on, found)
				}
				server.Query("GRANT " + on + " TO " + user)
			}
		}
	})
}
