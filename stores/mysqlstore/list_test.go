package mysqlstore

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// handled returns how many rows the only connection of the store's listings has read.
func handled(t *testing.T, s *Store) (n int) {
	t.Helper()
	rows, err := s.front.QueryContext(t.Context(), "SHOW SESSION STATUS LIKE 'Handler_read_%'")
	testkit.Must(t, err)
	defer rows.Close()
	for rows.Next() {
		var name string
		var count int
		testkit.Must(t, rows.Scan(&name, &count))
		if name != "Handler_read_rnd_next" { // which counts the rows of SHOW, too
			n += count
		}
	}
	testkit.Must(t, rows.Err())
	return n
}

// TestListReadsNoRecordsForLiveKeys: a listing of what is held, waited for or abandoned reads
// none of the keys that are done. A listing of done keys that stops early reads a page of them.
func TestListReadsNoRecordsForLiveKeys(t *testing.T) {
	onServers(t, func(t *testing.T, server *servertest.MariaDBServer) {
		s := open(t, server.URL(), &Options{Prefix: testkit.Own(), PruneEvery: -1})
		live := sqltest.Live(t, s)
		const digits = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL" +
			" SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)"
		number, from := "0", ""
		for n, i := sqltest.DoneKeys, 0; n > 1; n, i = n/10, i+1 {
			number = fmt.Sprintf("(%s)*10+t%d.d", number, i)
			from += fmt.Sprintf(",%s t%d", digits, i)
		}
		fill := s.names.append(nil, "INSERT INTO @key (k,fence,rec_token,rec_written,rec_ends) SELECT CONCAT(x'00','order ',"+number+"),1,'0123456789abcdef',"+
			clock+","+clock+"+3600000000 FROM "+strings.TrimPrefix(from, ","))
		if _, err := s.front.ExecContext(t.Context(), string(fill)); err != nil {
			t.Fatal(err)
		}
		s.front.SetMaxOpenConns(1)
		before := handled(t, s)
		sqltest.ListsLive(t, s, live)
		if n := handled(t, s) - before; n > 50*live {
			t.Errorf("to list %d live keys among %d, %d rows were read", live, sqltest.DoneKeys, n)
		}
		before = handled(t, s)
		for _, err := range s.List(t.Context(), store.Query{Conditions: []store.Condition{store.ConditionDone}}) {
			testkit.Must(t, err)
			break
		}
		if n := handled(t, s) - before; n > 20*256 {
			t.Errorf("to list a page of keys that are done, %d rows were read", n)
		}
	})
}
