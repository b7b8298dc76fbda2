package anystore

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestOnlyMigrateMakesASchema: a schema with a misspelt name would be a store of its own, so a
// command that opens it fails, and names it. Migrate makes it.
func TestOnlyMigrateMakesASchema(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
	for _, more := range []string{"", "&prefix=p", "&migrate=true"} {
		_, err := Open(t.Context(), server.URL()+"&schema=locsk"+more, ToUse)
		if !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), "no schema \"locsk\"") || !strings.Contains(err.Error(), "dibs migrate") {
			t.Errorf("%q: %v", more, err)
		}
	}
	if n := len(server.Query("SELECT 1 FROM pg_namespace WHERE nspname = 'locsk'")); n != 0 {
		t.Error("the schema is there")
	}
	url := server.URL() + "&schema=locks"
	if _, err := Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), url, ToUse)
	testkit.Must(t, err)
	testkit.Check(t, s.Close())
}

// TestOnlyMigrateMakesTables: nothing that opens a store on a SQL server makes its tables, even if
// the user may. The error names the command that does. A URL with migrate=true asks for them.
func TestOnlyMigrateMakesTables(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		server := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
		checkOnlyMigrate(t, server.URL()+"&", func() int {
			return len(server.Query("SELECT 1 FROM pg_class WHERE relnamespace = 'public'::regnamespace"))
		})
	})
	t.Run("mariadb", func(t *testing.T) {
		t.Parallel()
		server := servertest.MariaDB(t, &servertest.MariaDBOptions{NoSync: true})
		checkOnlyMigrate(t, server.URL()+"?", func() int { return len(server.Query("SHOW TABLES FROM app")) })
	})
}

// checkOnlyMigrate: tables counts those in the server's database.
func checkOnlyMigrate(t *testing.T, url string, tables func() int) {
	t.Helper()
	before := tables()
	for _, more := range []string{"prefix=p", "migrate=false"} {
		for _, mode := range []Mode{ToUse, ToInspect, ToList, ToCheck} {
			_, err := Open(t.Context(), url+more, mode)
			if !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), "the tables are missing or old; run dibs migrate --store '"+url[:len(url)-1]) {
				t.Errorf("mode %d, %s: %v", mode, more, err)
			}
		}
	}
	if _, err := Migrations(url + "prefix=p"); err != nil || tables() != before {
		t.Errorf("%v; there are %d tables, and %d before", err, tables(), before)
	}
	migrated(t, url+"prefix=p")
	for _, more := range []string{"prefix=p", "prefix=q&migrate=true"} {
		s, err := Open(t.Context(), url+more, ToUse)
		testkit.Must(t, err)
		testkit.Check(t, s.Close())
	}
}

// TestCure: the command that an error names does not have the password, and says so.
func TestCure(t *testing.T) {
	for url, want := range map[string]string{
		"mysql://shop@db.internal/shop":                     "run dibs migrate --store 'mysql://shop@db.internal/shop', or",
		"mysql://shop:secret@db.internal/shop":              "run dibs migrate --store 'mysql://shop@db.internal/shop' with the password, which is not shown here, or",
		"postgres://shop@db.internal/shop?password=secret":  "run dibs migrate --store 'postgres://shop@db.internal/shop' with the password, which is not shown here, or",
		"postgres://shop:secret@db.internal/shop?schema=s&": "run dibs migrate --store 'postgres://shop@db.internal/shop?schema=s&' with the password, which is not shown here, or",
	} {
		a, err := parse(url)
		testkit.Must(t, err)
		if got := cure(a); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s", url, got)
		}
	}
}

// openStore opens a store with its tables.
func openStore(t *testing.T, url string) *Store {
	t.Helper()
	migrated(t, url)
	s, err := Open(t.Context(), url, ToUse)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// migrated makes the tables of a store.
func migrated(t *testing.T, url string) {
	t.Helper()
	_, err := Migrate(t.Context(), url)
	testkit.Must(t, err)
}

// TestEncryption: connections to another host that may be without TLS are found.
func TestEncryption(t *testing.T) {
	for url, hosts := range map[string]string{
		"redis://:secret@cache.internal":                            "cache.internal:6379",
		"redis+cluster://a,b:7000?prefix=p":                         "a:6379, b:7000",
		"redis+sentinel://10.0.0.1,127.0.0.1/main":                  "10.0.0.1:26379",
		"rediss://cache.internal/2":                                 "",
		"redis://127.0.0.1:6379/2":                                  "",
		"redis://[::1]":                                             "",
		"redis+unix:///run/redis.sock":                              "",
		"postgres://app:secret@db.internal/app":                     "db.internal",
		"postgres://app@db.internal/app?sslmode=disable":            "db.internal",
		"postgres://app@db.internal/app?sslmode=verify-full":        "",
		"postgres://app@localhost/app?sslmode=disable":              "",
		"postgres:///app?host=/run/postgresql":                      "",
		"postgres://app@a,b/app?sslmode=disable":                    "a, b",
		"mysql://app:secret@db.internal/app":                        "db.internal:3306",
		"mysql://app@db.internal/app?tls=preferred":                 "db.internal:3306",
		"mysql://app@db.internal/app?tls=true":                      "",
		"mysql://app@db.internal/app?socket=/run/mysqld/mysql.sock": "",
		"mysql://app@/app?socket=/run/mysqld/mysql.sock":            "",
		"mariadb://app@127.0.0.1:3307/app":                          "",
	} {
		a, err := parse(url)
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		found := a.(interface{ checkTLS() []store.Finding }).checkTLS()
		if hosts == "" && len(found) == 0 {
			continue
		}
		if len(found) != 1 || hosts == "" || !strings.HasPrefix(found[0].What, "Connections to "+hosts+" may be") || found[0].Cure == "" {
			t.Errorf("%s: found %+v, want %q", url, found, hosts)
		}
	}
}

// TestRights: a user that may create tables is found, and no other user.
func TestRights(t *testing.T) {
	t.Run("postgres", func(t *testing.T) {
		server := servertest.Postgres(t, &servertest.PostgresOptions{NoSync: true})
		owner := server.URL() + "&schema=own"
		server.Query("CREATE SCHEMA own")
		mayCreate := checkRights(t, owner)
		server.Query("CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA own TO app; GRANT ALL ON ALL TABLES IN SCHEMA own TO app; GRANT ALL ON ALL SEQUENCES IN SCHEMA own TO app")
		app := strings.Replace(owner, "postgres@", "app@", 1)
		if !mayCreate || checkRights(t, app) {
			t.Error("want the owner and not the application")
		}
	})
	t.Run("mariadb", func(t *testing.T) {
		checkRightsOn(t, servertest.MariaDB(t, &servertest.MariaDBOptions{NoSync: true}))
	})
}

// checkRightsOn is TestRights on a MariaDB or MySQL server.
func checkRightsOn(t *testing.T, server *servertest.MariaDBServer) {
	t.Helper()
	mayCreate := checkRights(t, server.URL())
	url := func(user string) string { return strings.Replace(server.URL(), "root@", user+":secret@", 1) }
	for user, rights := range map[string]string{"app": "SELECT, INSERT, UPDATE, DELETE", "creator": "SELECT, INSERT, UPDATE, DELETE, CREATE"} {
		server.Query("CREATE USER " + user + "@'127.0.0.1' IDENTIFIED BY 'secret'")
		server.Query("GRANT " + rights + " ON `app`.* TO " + user + "@'127.0.0.1'")
	}
	if !mayCreate || checkRights(t, url("app")) || !checkRights(t, url("creator")) {
		t.Error("want root and creator, and not app")
	}
}

// checkRights reports whether Check finds that the user of the URL may create tables.
func checkRights(t *testing.T, url string) bool {
	t.Helper()
	found, err := openStore(t, url).Check(t.Context())
	testkit.Must(t, err)
	return slices.ContainsFunc(found, func(f store.Finding) bool { return f.Name == "rights" && f.Severity == store.SeverityAdvice })
}
