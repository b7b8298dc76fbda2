package pgstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/dibs-go/dibs/internal/product"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// TestCheck: what is wrong with a server's set-up is found, and nothing else.
func TestCheck(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, &servertest.PostgresOptions{MaxConnections: 40})
	const dangerous, advice = store.SeverityDangerous, store.SeverityAdvice
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
}

// TestEveryRight: what the README says a user needs is enough, and what may not be looked at is said. A
// user that lacks one of the rights cannot open the store, and the error and Check name what it lacks.
func TestEveryRight(t *testing.T) {
	t.Parallel()
	server := shared()
	owner := open(t, server.URL(), &Options{Schema: testkit.Own()})
	schema := owner.names.schema
	role := schema + "_app"
	server.Query("CREATE ROLE " + role + " LOGIN; " + strings.NewReplacer("SCHEMA own", "SCHEMA "+schema, " app;", " "+role+";").Replace(owner.names.sql(leastRights)))
	url := strings.Replace(server.URL(), "postgres@", role+"@", 1)
	able := open(t, url, &Options{Schema: schema})
	sqltest.Work(t, able)
	got, err := able.Check(t.Context())
	testkit.Must(t, err)
	if len(got) == 0 || got[len(got)-1].Severity != store.SeverityUnchecked || got[len(got)-1].Name != "vacuum" {
		t.Errorf("found %+v, want that transactions are unchecked", got)
	}
	start := func() (*Store, error) { return Open(t.Context(), url, &Options{Schema: schema}) }
	revoked := func(right, on, to string) {
		t.Helper()
		right += " ON " + on
		server.Query("REVOKE " + right + " FROM " + role)
		sqltest.Lacks(t, able, ErrUnauthorized, right, to, start)
		server.Query("GRANT " + right + " TO " + role)
	}
	for _, n := range owner.names.needs() {
		on := schema + "." + n.name
		if n.kind == "sequence" {
			on = "SEQUENCE " + on
		}
		revoked(n.verb, on, n.name)
	}
	revoked("USAGE", "SCHEMA "+schema, schema)
	server.Query("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA " + schema + " FROM PUBLIC")
	if s, err := start(); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("without functions: %v", err)
		if err == nil {
			s.Close()
		}
	}
}

// versions are what products say of themselves, by their name.
var versions = map[string]string{
	"PostgreSQL":      "PostgreSQL 17.2 on x86_64-pc-linux-gnu, compiled by gcc, 64-bit",
	"CockroachDB":     "CockroachDB CCL v24.1.0 (x86_64-pc-linux-gnu, built 2024/05/15 21:28:29, go1.22.2 X:nocoverageredesign)",
	"YugabyteDB":      "PostgreSQL 15.12-YB-2025.1.0.0-b0 on x86_64-pc-linux-gnu, compiled by clang version 17.0.6, 64-bit",
	"Amazon Redshift": "PostgreSQL 8.0.2 on i686-pc-linux-gnu, compiled by GCC gcc (GCC) 3.4.2 20041017 (Red Hat 3.4.2-6.fc3), Redshift 1.0.12103",
}

// TestProducts: a product that only looks like PostgreSQL is refused by its name before a key is
// taken, and Check names one that is not tested. Behind each of them is a PostgreSQL, which answers
// all but the questions about the product.
func TestProducts(t *testing.T) {
	t.Parallel()
	for _, p := range product.PostgreSQL.Products {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			says := map[string]string{"version()": versions["PostgreSQL"]}
			for _, sign := range p.Signs {
				says[sign.Asked] = versions[p.Name]
			}
			o := &Options{Prefix: testkit.Own()}
			url := disguise(t, says)
			sqltest.Product(t, &p, ErrUnsupported,
				func() (*Store, error) { return Open(t.Context(), url, &Options{Prefix: o.Prefix, Migrate: true}) }, func() *Store { return open(t, url, o) })
			if n := shared().Query("SELECT count(*) FROM pg_tables WHERE schemaname = 'public' AND tablename LIKE '" + o.Prefix + "%'")[0][0]; p.Store == product.Refused && n != "0" {
				t.Errorf("%s tables were made", n)
			}
		})
	}
}

// TestUnknownProduct: a product that no table has runs, and Check says that nothing is known of it.
func TestUnknownProduct(t *testing.T) {
	t.Parallel()
	for want, says := range map[string]map[string]string{
		`"ShinyDB 3.1", which dibs does not know`: {"version()": "ShinyDB 3.1", "setting shiny.wal": "on"},
		"does not tell this user what it is":      nil,
	} {
		sqltest.FindsProduct(t, open(t, disguise(t, says), &Options{Prefix: testkit.Own()}), want, store.SeverityUnchecked)
	}
}

// disguise returns a URL of the shared server. A proxy in between asks it for the texts in says, by
// their names, in place of what is asked about the product. An empty map says that the question is
// refused.
func disguise(t *testing.T, says map[string]string) string {
	t.Helper()
	var rows []string
	for name, text := range says {
		rows = append(rows, fmt.Sprintf("SELECT '%s', '%s'", name, text))
	}
	answer := "SELECT nothing_of_this_name()"
	if len(rows) > 0 {
		answer = strings.Join(rows, " UNION ALL ")
	}
	return shared().URLAt(testkit.Serve(t, func(_ int, c *net.TCPConn) { relay(c, answer) }))
}

// relay carries a connection to the shared server.
func relay(client net.Conn, answer string) {
	server, err := net.Dial("tcp", shared().Addr())
	if err != nil {
		return
	}
	defer server.Close()
	from, to := pgproto3.NewBackend(client, client), pgproto3.NewFrontend(server, server)
	for begun := false; !begun; {
		first, err := from.ReceiveStartupMessage()
		if err != nil {
			return
		}
		switch m := first.(type) {
		case *pgproto3.StartupMessage:
			to.Send(m)
			begun = true
		case *pgproto3.CancelRequest:
			to.Send(m)
			_ = to.Flush()
			return
		default: // TLS
			if _, err := client.Write([]byte("N")); err != nil {
				return
			}
		}
	}
	var back sync.WaitGroup
	defer back.Wait()
	defer server.Close()
	back.Go(func() { _, _ = io.Copy(client, server); client.Close() })
	for to.Flush() == nil {
		m, err := from.Receive()
		if err != nil {
			return
		}
		if m, ok := m.(*pgproto3.Parse); ok {
			for i, question := range product.PostgreSQL.Questions {
				if m.Query != question {
					continue
				}
				if m.Query = answer; i > 0 { // the first answers all
					m.Query = "SELECT '', '' WHERE false"
				}
				break
			}
		}
		to.Send(m)
	}
}
