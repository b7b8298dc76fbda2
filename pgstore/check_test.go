package pgstore

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
)

// TestCheck: what is wrong with a server's set-up is found, and nothing else.
func TestCheck(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, &servertest.PostgresOptions{MaxConnections: 40})
	const dangerous, advice, unchecked = dibs.SeverityDangerous, dibs.SeverityAdvice, dibs.SeverityUnchecked
	type found struct {
		name     string
		severity dibs.Severity
		what     string
	}
	tests := []struct {
		name string
		// setUp changes the server or the schema; undo puts that right.
		setUp, undo string
		store       func(t *testing.T, s *Store) // what happens after it was opened
		want        []found
	}{
		{name: "sound"},
		{
			name: "isolation", undo: "ALTER ROLE postgres RESET default_transaction_isolation",
			store: func(_ *testing.T, s *Store) {
				server.Query("ALTER ROLE postgres SET default_transaction_isolation = 'serializable'")
				s.front.Reset()
			},
			want: []found{{"isolation", dangerous, "serializable"}},
		},
		{
			name: "timeout", setUp: "ALTER ROLE postgres SET statement_timeout = '1500ms'",
			undo: "ALTER ROLE postgres RESET statement_timeout",
			want: []found{{"timeout", advice, "1.5s"}},
		},
		{
			name: "page writes", setUp: "ALTER SYSTEM SET full_page_writes = off",
			undo: "ALTER SYSTEM RESET full_page_writes",
			want: []found{{"durability", advice, "full_page_writes"}},
		},
		{
			name: "autovacuum", setUp: "ALTER SYSTEM SET autovacuum = off",
			undo: "ALTER SYSTEM RESET autovacuum",
			want: []found{{"vacuum", dangerous, "autovacuum is off"}},
		},
		{
			name: "clock set back",
			store: func(_ *testing.T, s *Store) {
				server.Query(s.names.sql("UPDATE @meta SET fence = fence + extract(epoch FROM clock_timestamp() + interval '1 hour 30 seconds') * 1000000"))
			},
			want: []found{{"clock", dangerous, "1h0m"}},
		},
		{
			name:  "missing index",
			store: func(_ *testing.T, s *Store) { server.Query(`DROP INDEX "` + s.names.schema + `".dibs_key_record`) },
			want:  []found{{"tables", dangerous, "dibs_key_record"}},
		},
		{
			name:  "other version",
			store: func(_ *testing.T, s *Store) { server.Query(s.names.sql("UPDATE @meta SET version = 0")) },
			want:  []found{{"tables", dangerous, "version 0"}},
		},
		{
			name: "connections",
			store: func(t *testing.T, _ *Store) {
				for range 32 {
					conn, err := pgx.Connect(t.Context(), server.URL())
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = conn.Close(context.Background()) })
				}
			},
			want: []found{{"connections", advice, "of 37 connections are in use"}},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.setUp != "" {
				server.Query(test.setUp)
				server.Query("SELECT pg_reload_conf()")
			}
			if test.undo != "" {
				defer func() {
					server.Query(test.undo)
					server.Query("SELECT pg_reload_conf()")
				}()
			}
			s := open(t, server.URL(), &Options{Schema: ownSchema()})
			if test.store != nil {
				test.store(t, s)
			}
			var got []dibs.Finding
			eventually(t, 10*time.Second, "the findings", func() bool { // a reload takes its time
				var err error
				if got, err = s.Check(t.Context()); err != nil {
					t.Fatal(err)
				}
				return len(got) == len(test.want)
			})
			for i, w := range test.want {
				if f := got[i]; f.Name != w.name || f.Severity != w.severity || !strings.Contains(f.What, w.what) || f.Cure == "" {
					t.Errorf("found %+v, want %+v", f, w)
				}
			}
		})
	}
	t.Run("least rights", func(t *testing.T) {
		eventually(t, 10*time.Second, "connections", func() bool {
			return server.Query("SELECT count(*) < 25 FROM pg_stat_activity")[0][0] == "t"
		})
		owner := open(t, server.URL(), &Options{Schema: ownSchema()})
		server.Query("CREATE ROLE app LOGIN; " + strings.Replace(owner.names.sql(leastRights), "SCHEMA own", "SCHEMA "+owner.names.schema, 1))
		url := strings.Replace(server.URL(), "postgres@", "app@", 1)
		s := open(t, url, &Options{Schema: owner.names.schema})
		work(t, s)
		got, err := s.Check(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 || got[len(got)-1].Severity != unchecked || got[len(got)-1].Name != "vacuum" {
			t.Errorf("found %+v, want that transactions are unchecked", got)
		}
	})
}
