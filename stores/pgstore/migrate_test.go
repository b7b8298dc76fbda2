package pgstore

import (
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// TestMigrateAtOnce: ten processes that start at once make one set of tables, even
// after they have seen that there is none, at whatever isolation level they are.
func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	server, schema := shared(), testkit.Own()
	var all, looked sync.WaitGroup
	looked.Add(10)
	for n := range 10 {
		all.Go(func() {
			config, err := pgx.ParseConfig(server.URL())
			testkit.Check(t, err)
			config.RuntimeParams["default_transaction_isolation"] = []string{"read committed", "repeatable read"}[n%2]
			conn, err := pgx.ConnectConfig(t.Context(), config)
			if err == nil {
				_, _, err = Version(t.Context(), conn, &Options{Schema: schema, Prefix: "other"})
			}
			looked.Done()
			looked.Wait()
			if err == nil {
				err = Migrate(t.Context(), conn, &Options{Schema: schema, Prefix: "other"})
			}
			if err == nil {
				err = conn.Close(t.Context())
			}
			testkit.Check(t, err)
		})
	}
	all.Wait()
	s := open(t, server.URL(), &Options{Schema: schema, Prefix: "other"})
	sqltest.Work(t, s)
	if got := server.Query(`SELECT count(*) FROM "` + schema + `".other_meta`)[0][0]; got != "1" {
		t.Errorf("%s rows in the table of which there is one", got)
	}
	if got := server.Query(`SELECT count(*) FROM pg_class WHERE relnamespace = '` + schema + `'::regnamespace AND relname NOT LIKE 'other%'`)[0][0]; got != "0" {
		t.Errorf("%s things without the prefix", got)
	}
}

// TestMigrations: what is printed makes a store, when it is run by hand.
func TestMigrations(t *testing.T) {
	t.Parallel()
	server, schema := shared(), testkit.Own()
	all, err := Migrations(&Options{Schema: schema})
	testkit.Must(t, err)
	server.Query("CREATE SCHEMA " + schema)
	atVersion(t, server.URL(), schema, 0)
	for i, m := range all {
		if m.Version != i+1 || strings.Contains(m.SQL, "@") {
			t.Errorf("migration %d has version %d, or names that were left out", i, m.Version)
		}
		server.Query(m.SQL)
		atVersion(t, server.URL(), schema, i+1)
	}
	s, err := Open(t.Context(), server.URL(), &Options{Schema: schema})
	testkit.Must(t, err)
	defer s.Close()
	sqltest.Work(t, s)
}

// atVersion checks what Version says of the tables.
func atVersion(t *testing.T, url, schema string, want int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	testkit.Must(t, err)
	defer conn.Close(t.Context())
	have, wanted, err := Version(t.Context(), conn, &Options{Schema: schema})
	if have != want || wanted != version || err != nil {
		t.Errorf("version %d of %d, %v; want %d", have, wanted, err, want)
	}
}

// TestSchemas: stores in one database that differ in schema or prefix never meet.
func TestSchemas(t *testing.T) {
	t.Parallel()
	one, two := testkit.Own(), testkit.Own()
	stores := []*Store{
		open(t, shared().URL(), &Options{Schema: one}), open(t, shared().URL(), &Options{Schema: two}),
		open(t, shared().URL()+"&prefix=p", &Options{Schema: one}),
	}
	for i, s := range stores {
		lease, err := sqltest.Client(t, s, nil).TryAcquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatalf("store %d: %v", i, err)
		}
		t.Cleanup(func() { _ = lease.Release() })
	}
}

// TestNames: what is not a name is refused before it is written into SQL.
func TestNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{`a"b`, "a-b", "A", "1a", "a b", "a;DROP TABLE x", "é", strings.Repeat("a", 64)} {
		if _, err := Open(t.Context(), shared().URL(), &Options{Schema: name}); err == nil || !strings.Contains(err.Error(), "Options.Schema") {
			t.Errorf("schema %q: %v", name, err)
		}
		if _, err := Migrations(&Options{Prefix: name}); err == nil || !strings.Contains(err.Error(), "Options.Prefix") {
			t.Errorf("prefix %q: %v", name, err)
		}
	}
	sqltest.Work(t, open(t, shared().URL(), &Options{Schema: testkit.Own(), Prefix: strings.Repeat("p", 32)}))
}
