package mysqlstore

import (
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
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
	const dangerous, advice = dibs.SeverityDangerous, dibs.SeverityAdvice
	type found struct {
		name     string
		severity dibs.Severity
		what     string
	}
	tests := []struct {
		name string
		// setUp changes the server; undo puts that right.
		setUp, undo string
		store       func(t *testing.T, s *Store) // what happens after it was opened
		want        []found
	}{
		{name: "sound"},
		{
			name:  "read-only",
			undo:  "SET GLOBAL read_only = 0",
			store: func(*testing.T, *Store) { server.Query("SET GLOBAL read_only = 1") },
			want:  []found{{"read-only", dangerous, "read_only"}},
		},
		{
			name: "no flush", setUp: "SET GLOBAL innodb_flush_log_at_trx_commit = 0", undo: "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
			want: []found{{"durability", dangerous, "is 0"}},
		},
		{
			name: "no sync", setUp: "SET GLOBAL innodb_flush_log_at_trx_commit = 2", undo: "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
			want: []found{{"durability", advice, "is 2"}},
		},
		{
			name: "binary log", setUp: "SET GLOBAL sync_binlog = 0", undo: "SET GLOBAL sync_binlog = 1",
			want: []found{{"binary-log", advice, "sync_binlog is 0"}},
		},
		{
			name: "packet", setUp: "SET GLOBAL max_allowed_packet = 1048576", undo: "SET GLOBAL max_allowed_packet = 16777216",
			want: []found{{"packet", advice, "1048576"}},
		},
		{
			name: "clock set back",
			store: func(_ *testing.T, s *Store) {
				server.Query(s.names.sql("UPDATE @meta SET fence=" + clock + "+3630000000"))
			},
			want: []found{{"clock", dangerous, "1h0m"}},
		},
		{
			name:  "missing index",
			store: func(_ *testing.T, s *Store) { server.Query(s.names.sql("ALTER TABLE @waiter DROP KEY waiter_token")) },
			want:  []found{{"tables", dangerous, "waiter_token"}},
		},
		{
			name:  "other engine",
			store: func(_ *testing.T, s *Store) { server.Query(s.names.sql("ALTER TABLE @progress ENGINE=MyISAM")) },
			want:  []found{{"tables", dangerous, "progress (MyISAM)"}},
		},
		{
			name:  "other version",
			store: func(_ *testing.T, s *Store) { server.Query(s.names.sql("UPDATE @meta SET version=0")) },
			want:  []found{{"tables", dangerous, "version 0"}},
		},
		{
			name:  "no tables",
			store: func(_ *testing.T, s *Store) { drop(server, s.names.prefix) },
			want:  []found{{"tables", dangerous, "version 0"}},
		},
		{
			name: "connections",
			store: func(t *testing.T, _ *Store) {
				db := openDB(t, server.URL())
				for range 36 {
					conn, err := db.Conn(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = conn.Close() })
				}
			},
			want: []found{{"connections", advice, "of 40 connections are in use"}},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.setUp != "" {
				server.Query(test.setUp)
			}
			if test.undo != "" {
				defer server.Query(test.undo)
			}
			s := open(t, server.URL(), &Options{Prefix: ownPrefix(), PruneEvery: -1})
			if test.store != nil {
				test.store(t, s)
			}
			got, err := s.Check(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != len(test.want) {
				t.Fatalf("found %+v, want %+v", got, test.want)
			}
			for i, w := range test.want {
				if f := got[i]; f.Name != w.name || f.Severity != w.severity || !strings.Contains(f.What, w.what) || f.Cure == "" {
					t.Errorf("found %+v, want %+v", f, w)
				}
			}
		})
	}
}

// TestClockStep: a clock that was set between two looks is noticed.
func TestClockStep(t *testing.T) {
	t.Parallel()
	start := time.Now()
	for _, test := range []struct {
		step time.Duration
		says string
	}{
		{step: 0}, {step: 300 * time.Millisecond}, {step: time.Minute, says: "1m0s ahead"}, {step: -time.Hour, says: "1h0m0s back"},
	} {
		k, c := newClocks(), &checkup{}
		k.check(c, &facts{at: start, shows: 5e15})
		k.check(c, &facts{at: start.Add(time.Minute), shows: 5e15 + micros(time.Minute+test.step)})
		switch {
		case test.says == "" && len(c.found) > 0, test.says != "" && len(c.found) != 1:
			t.Errorf("a step of %v: found %+v", test.step, c.found)
		case test.says != "" && !strings.Contains(c.found[0].What, test.says):
			t.Errorf("a step of %v: %q does not say %q", test.step, c.found[0].What, test.says)
		}
	}
}

// TestLeastRights: what the README says a user needs is enough, on both kinds of
// servers; and what may not be looked at is said.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]*servertest.MariaDBServer{"MariaDB": mariadb(), "MySQL": mysqld()} {
		t.Run(name, func(t *testing.T) {
			owner := open(t, server.URL(), &Options{Prefix: ownPrefix()})
			user := owner.names.prefix
			server.Query("CREATE USER " + user + "@'127.0.0.1' IDENTIFIED BY 'secret'")
			server.Query(strings.ReplaceAll(owner.names.sql(leastRights), "TO app", "TO "+user+"@'127.0.0.1'"))
			url := strings.Replace(server.URL(), "root@", user+":secret@", 1)
			s, err := Open(t.Context(), url, &Options{Prefix: owner.names.prefix, Migrate: true})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			work(t, s)
			if _, err := s.Prune(t.Context(), 0); err != nil {
				t.Error(err)
			}
			got, err := s.Check(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(got) == 0 || got[len(got)-1].Severity != dibs.SeverityUnchecked || got[len(got)-1].Name != "transactions" {
				t.Errorf("found %+v, want that transactions are unchecked", got)
			}
		})
	}
}
