package mysqlstore

import (
	"bytes"
	"database/sql"
	"errors"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
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

// TestNamesInSQL: names of tables get the store's prefix, variables stay as they are.
func TestNamesInSQL(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "",
		"SELECT 1":                "SELECT 1",
		"@key":                    "app.`own_key`",
		"a FROM @key x,@holder":   "a FROM app.`own_key` x,app.`own_holder`",
		"SET @F=1 WHERE @N>@key_": "SET @F=1 WHERE @N>app.`own_key`_",
		"'@waiter'@":              "'app.`own_waiter`'@",
	} {
		if got := (namer{"own", "app."}).sql(text); got != want {
			t.Errorf("%s became %s, want %s", text, got, want)
		}
	}
}

// TestCharsets: whatever character set the application's connections or the server
// have, what is kept is what was given, and no part of it is SQL. In some of them the
// second byte of a character may be a backslash, which then escapes nothing.
func TestCharsets(t *testing.T) {
	t.Parallel()
	plain := testkit.Own()
	odd().Query("CREATE USER " + plain + "@'127.0.0.1' IDENTIFIED BY 'secret'; GRANT ALL ON app.* TO " + plain + "@'127.0.0.1'")
	for name, test := range map[string]struct {
		server func() *servertest.MariaDBServer
		user   string
		set    func(c *mysql.Config) error
	}{
		"as it is":     {mariadb, "", func(*mysql.Config) error { return nil }},
		"charset":      {mariadb, "", func(c *mysql.Config) error { return c.Apply(mysql.Charset("gbk", "")) }},
		"both":         {mariadb, "", func(c *mysql.Config) error { return c.Apply(mysql.Charset("sjis", "sjis_bin")) }},
		"collation":    {mariadb, "", func(c *mysql.Config) error { c.Collation = "gbk_chinese_ci"; return nil }},
		"MySQL":        {servers["MySQL"], "", func(c *mysql.Config) error { return c.Apply(mysql.Charset("gbk", "")) }},
		"the server's": {odd, plain + ":secret", func(*mysql.Config) error { return nil }},
	} {
		if test.server == nil {
			continue
		}
		prefix := testkit.Own()
		open(t, test.server().URL(), &Options{Prefix: prefix}) // makes the tables
		config, _, err := parse(test.server().URL(), nil)
		testkit.Must(t, err)
		if test.user != "" {
			config.User, config.Passwd, _ = strings.Cut(test.user, ":")
		}
		testkit.Must(t, test.set(config))
		s, err := New(t.Context(), config, &Options{Prefix: prefix})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		t.Cleanup(func() { testkit.Check(t, s.Close()) })
		token, k := store.NewToken(), store.Key{Name: "k"}
		claims := []store.Claim{{Key: k, Token: token, TTL: time.Minute, Permits: 1, Weight: 1, MaxAge: time.Hour}}
		answers := make([]store.Answer, 1)
		if err := s.Claim(t.Context(), claims, answers); err != nil || answers[0].State != store.Granted {
			t.Fatalf("%s: %v, %+v", name, err, answers[0])
		}
		data := []byte("\xbf',1); DELETE FROM " + prefix + "_key; -- \xbf\\\x81'\x00\xff\"\x1a\r\n?")
		errs := make([]error, 1)
		err = s.Settle(t.Context(), []store.Settlement{{Key: k, Token: token, Outcome: store.Keep, Data: data, Retention: time.Hour}}, errs)
		if err != nil || errs[0] != nil {
			t.Errorf("%s: %v, %v", name, err, errs[0])
			continue
		}
		claims[0].Token = store.NewToken()
		if err := s.Claim(t.Context(), claims, answers); err != nil || answers[0].State != store.Done || !bytes.Equal(answers[0].Record.Data, data) {
			t.Errorf("%s: %v, %+v; want %q", name, err, answers[0], data)
		}
	}
}
