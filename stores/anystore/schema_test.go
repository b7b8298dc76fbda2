package anystore

import (
	"errors"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
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
