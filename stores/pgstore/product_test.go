package pgstore

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/dibs-go/dibs/internal/product"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

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
