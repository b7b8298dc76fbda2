package mysqlstore

import (
	"database/sql"
	"errors"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// TestMigrateAtOnce: ten processes that start at once make one set of tables, on both
// kinds of servers.
func TestMigrateAtOnce(t *testing.T) {
	onServers(t, func(t *testing.T, server *servertest.MariaDBServer) {
		prefix := testkit.Own()
		var all sync.WaitGroup
		for range 10 {
			db := openDB(t, server.URL())
			all.Go(func() {
				testkit.Check(t, Migrate(t.Context(), db, &Options{Prefix: prefix}))
			})
		}
		all.Wait()
		sqltest.Work(t, open(t, server.URL(), &Options{Prefix: prefix}))
		if got := server.Query("SELECT COUNT(*) FROM " + prefix + "_meta")[0][0]; got != "1" {
			t.Errorf("%s rows in the table of which there is one", got)
		}
		var got []string
		for _, row := range server.Query("SHOW TABLES LIKE '" + prefix + "\\_%'") {
			got = append(got, strings.TrimPrefix(row[0], prefix+"_"))
		}
		if len(got) != len(tables) {
			t.Errorf("the tables are %v, want %v", got, tables)
		}
	})
}

// TestMigrateAgain: a migration that was cut short is made up for.
func TestMigrateAgain(t *testing.T) {
	t.Parallel()
	server, prefix := mariadb(), testkit.Own()
	open(t, server.URL(), &Options{Prefix: prefix})
	server.Query("DROP TABLE " + prefix + "_record, " + prefix + "_meta")
	sqltest.Work(t, open(t, server.URL(), &Options{Prefix: prefix}))
}

// TestMigrateUncommitted: an application whose connections do not commit by themselves
// migrates all the same, also several at once that have looked before.
func TestMigrateUncommitted(t *testing.T) {
	onServers(t, func(t *testing.T, server *servertest.MariaDBServer) {
		prefix := testkit.Own()
		config, _, err := parse(server.URL(), nil)
		testkit.Must(t, err)
		config.Params = map[string]string{"autocommit": "0"}
		c, err := mysql.NewConnector(config)
		testkit.Must(t, err)
		db := sql.OpenDB(c)
		defer db.Close()
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				testkit.Check(t, Migrate(t.Context(), db, &Options{Prefix: prefix}))
			})
		}
		all.Wait()
		s, err := Open(t.Context(), server.URL(), &Options{Prefix: prefix})
		testkit.Must(t, err)
		testkit.Check(t, s.Close())
	})
}

// TestMigrations: what is printed makes a store, when it is run by hand, also twice.
func TestMigrations(t *testing.T) {
	t.Parallel()
	server, prefix := mariadb(), testkit.Own()
	all, err := Migrations(&Options{Prefix: prefix})
	testkit.Must(t, err)
	for i, m := range all {
		if m.Version != i+1 || regexp.MustCompile(`@[a-z]`).MatchString(m.SQL) {
			t.Errorf("migration %d has version %d, or names that were left out", i, m.Version)
		}
		server.Query(m.SQL)
		server.Query(m.SQL)
	}
	s, err := Open(t.Context(), server.URL(), &Options{Prefix: prefix})
	testkit.Must(t, err)
	defer s.Close()
	sqltest.Work(t, s)
}

// TestPrefixes: stores in one database that differ in their prefix never meet.
func TestPrefixes(t *testing.T) {
	t.Parallel()
	server := mariadb()
	for i, prefix := range []string{testkit.Own(), testkit.Own()} {
		s := open(t, server.URL()+"?prefix="+prefix, nil)
		lease, err := sqltest.Client(t, s, nil).TryAcquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatalf("store %d: %v", i, err)
		}
		t.Cleanup(func() { _ = lease.Release() })
	}
}

// TestNames: what is not a name is refused before it is written into SQL, and what is
// in a key, a namespace or an answer is never SQL, whatever the server's sql_mode.
func TestNames(t *testing.T) {
	t.Parallel()
	server := odd()
	for _, name := range []string{"a`b", `a"b`, "a-b", "A", "1a", "a b", "a;DROP TABLE x", "é", strings.Repeat("a", 33)} {
		if _, err := Open(t.Context(), server.URL(), &Options{Prefix: name}); err == nil || !strings.Contains(err.Error(), "Options.Prefix") {
			t.Errorf("prefix %q: %v", name, err)
		}
		if _, err := Migrations(&Options{Prefix: name}); err == nil || !strings.Contains(err.Error(), "Options.Prefix") {
			t.Errorf("prefix %q: %v", name, err)
		}
	}
	s := open(t, server.URL(), &Options{Prefix: strings.Repeat("p", 32)})
	c := sqltest.Client(t, s, &dibs.Options{Namespace: "');DROP/**/TABLE/**/x;--"})
	for _, key := range []string{`'; DROP TABLE x; --`, "`; --", "?", "@n", `\`, "\\'; --", "\x00", "\xbf\x27; --", "%s", "'", "a ", "a", "A"} {
		lease, err := c.TryAcquire(t.Context(), key, &dibs.AcquireOptions{Label: key})
		if err != nil {
			t.Fatalf("%q: %v", key, err)
		}
		if _, err := c.TryAcquire(t.Context(), key, nil); !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("%q: %v, want ErrHeld", key, err)
		}
		if err := lease.Save(t.Context(), []byte(key)); err != nil {
			t.Errorf("%q: %v", key, err)
		}
		if err := lease.Abandon(t.Context()); err != nil {
			t.Errorf("%q: %v", key, err)
		}
		lease, err = c.TryAcquire(t.Context(), key, &dibs.AcquireOptions{Label: key})
		if err != nil || string(lease.Progress()) != key {
			t.Fatalf("%q: progress %q, %v", key, lease.Progress(), err)
		}
		if err := lease.Release(); err != nil {
			t.Errorf("%q: %v", key, err)
		}
	}
}
