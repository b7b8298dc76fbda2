package pgstore

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// TestCheck: what is wrong with a server's set-up is found, and nothing else.
func TestCheck(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, &servertest.PostgresOptions{MaxConnections: 40})
	const dangerous, advice, unchecked = store.SeverityDangerous, store.SeverityAdvice, store.SeverityUnchecked
	reload := "SELECT pg_reload_conf()"
	do := func(text string) func(testing.TB, sqltest.Store) {
		return func(_ testing.TB, s sqltest.Store) { server.Query(s.(*Store).names.sql(text)) }
	}
	sqltest.Check(t, server, map[string]sqltest.Setup{
		"sound": {},
		"isolation": {
			Undo: []string{"ALTER ROLE postgres RESET default_transaction_isolation"},
			Store: func(_ testing.TB, s sqltest.Store) {
				server.Query("ALTER ROLE postgres SET default_transaction_isolation = 'serializable'")
				s.(*Store).front.Reset()
			},
			Finds: sqltest.Found("isolation", dangerous, "serializable"),
		},
		"timeout": {
			Do:    []string{"ALTER ROLE postgres SET statement_timeout = '1500ms'"},
			Undo:  []string{"ALTER ROLE postgres RESET statement_timeout"},
			Finds: sqltest.Found("timeout", advice, "1.5s"),
		},
		"commits without the standby": {
			Undo: []string{"ALTER SYSTEM RESET synchronous_standby_names", reload, "ALTER ROLE postgres RESET synchronous_commit"},
			Store: func(_ testing.TB, s sqltest.Store) {
				server.Query("ALTER ROLE postgres SET synchronous_commit = local")
				server.Query("ALTER SYSTEM SET synchronous_standby_names = '*'")
				server.Query(reload)
				s.(*Store).front.Reset()
			},
			Finds: sqltest.Found("replication", advice, "synchronous_commit is local"),
		},
		"page writes": {
			Do:    []string{"ALTER SYSTEM SET full_page_writes = off", reload},
			Undo:  []string{"ALTER SYSTEM RESET full_page_writes", reload},
			Finds: sqltest.Found("durability", advice, "full_page_writes"),
		},
		"autovacuum": {
			Do:    []string{"ALTER SYSTEM SET autovacuum = off", reload},
			Undo:  []string{"ALTER SYSTEM RESET autovacuum", reload},
			Finds: sqltest.Found("vacuum", dangerous, "autovacuum is off"),
		},
		"clock set back": {
			Store: do("UPDATE @meta SET fence = fence + extract(epoch FROM clock_timestamp() + interval '1 hour 30 seconds') * 1000000"),
			Finds: sqltest.Found("clock", dangerous, "1h0m"),
		},
		"missing index": {
			Store: func(_ testing.TB, s sqltest.Store) {
				server.Query(`DROP INDEX "` + s.(*Store).names.schema + `".dibs_waiter_seq`)
			},
			Finds: sqltest.Found("tables", dangerous, "dibs_waiter_seq"),
		},
		"other version": {
			Store: do("UPDATE @meta SET version = 0"),
			Finds: sqltest.Found("tables", dangerous, "version 0"),
		},
		"connections": {
			Store: func(t testing.TB, _ sqltest.Store) {
				for range 32 {
					conn, err := pgx.Connect(t.Context(), server.URL())
					testkit.Must(t, err)
					t.Cleanup(func() { _ = conn.Close(context.Background()) })
				}
			},
			Finds: sqltest.Found("connections", advice, "of 37 connections are in use"),
		},
	}, func(t *testing.T) sqltest.Store { return open(t, server.URL(), &Options{Schema: testkit.Own()}) })
	t.Run("least rights", func(t *testing.T) {
		testkit.Eventually(t, "connections", func() bool {
			return server.Query("SELECT count(*) < 25 FROM pg_stat_activity")[0][0] == "t"
		})
		owner := open(t, server.URL(), &Options{Schema: testkit.Own()})
		server.Query("CREATE ROLE app LOGIN; " + strings.Replace(owner.names.sql(leastRights), "SCHEMA own", "SCHEMA "+owner.names.schema, 1))
		url := strings.Replace(server.URL(), "postgres@", "app@", 1)
		s := open(t, url, &Options{Schema: owner.names.schema})
		sqltest.Work(t, s)
		got, err := s.Check(t.Context())
		testkit.Must(t, err)
		if len(got) == 0 || got[len(got)-1].Severity != unchecked || got[len(got)-1].Name != "vacuum" {
			t.Errorf("found %+v, want that transactions are unchecked", got)
		}
	})
}
