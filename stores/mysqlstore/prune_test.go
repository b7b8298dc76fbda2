package mysqlstore

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/remote"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// sweepNow has a store go through all keys as it does once a minute.
func sweepNow(t testing.TB, server *servertest.MariaDBServer, s *Store) {
	t.Helper()
	server.Query(s.names.sql("UPDATE @meta SET swept=0"))
	sweep := takeSweep(t, s, true)
	takeSweep(t, s, false)
	for done := false; !done; {
		var err error
		if _, _, done, err = sweep(t.Context(), 1<<30); err != nil {
			t.Fatal(err)
		}
	}
}

// takeSweep asks whether it is the store's turn to sweep.
func takeSweep(t testing.TB, s *Store, want bool) remote.Sweep {
	t.Helper()
	sweep, err := s.takeSweep(t.Context())
	if err != nil || (sweep != nil) != want {
		t.Fatalf("its turn: %v, %v; want %v", sweep != nil, err, want)
	}
	return sweep
}

// forget deletes the rows of keys that are not in use. The first sweep deletes none, because a row
// is deleted only when every claim knows that the mark is above its fence.
func forget(t testing.TB, server *servertest.MariaDBServer, s *Store) {
	t.Helper()
	sweepNow(t, server, s)
	if n := server.Query(s.names.sql("SELECT COUNT(*) FROM @key"))[0][0]; n == "0" {
		t.Fatal("the first sweep deleted all keys")
	}
	sweepNow(t, server, s)
}

// TestPacket: what the server does not take fails alone, and says what to do.
func TestPacket(t *testing.T) {
	t.Parallel()
	s := open(t, odd().URL(), &Options{Prefix: testkit.Own()})
	for _, test := range []struct {
		data string
		fits bool
	}{
		{strings.Repeat("a", 900<<10), true},
		{strings.Repeat("a", 1<<20), false},
		{strings.Repeat("'", 450<<10), true},
		{strings.Repeat("'", 900<<10), false}, // each of them is written as two
	} {
		const n = 6
		claims, answers := make([]store.Claim, n), make([]store.Answer, n)
		settlements, errs := make([]store.Settlement, n), make([]error, n)
		for i := range n {
			k, token := store.Key{Name: fmt.Sprintf("%.1s %d %d", test.data, len(test.data), i)}, store.NewToken()
			claims[i] = store.Claim{Key: k, Token: token, TTL: time.Minute, Permits: 1, Weight: 1, MaxAge: time.Hour}
			settlements[i] = store.Settlement{Key: k, Token: token, Outcome: store.Keep, Data: []byte("small"), Retention: time.Hour}
		}
		settlements[3].Data = []byte(test.data)
		testkit.Must(t, s.Claim(t.Context(), claims, answers))
		testkit.Must(t, s.Settle(t.Context(), settlements, errs))
		for i := range claims {
			claims[i].Token = store.NewToken()
		}
		testkit.Must(t, s.Claim(t.Context(), claims, answers))
		for i, err := range errs {
			switch {
			case i == 3 && !test.fits:
				if !errors.Is(err, store.ErrTooLarge) || !strings.Contains(err.Error(), "max_allowed_packet") || answers[i].State != store.Held {
					t.Errorf("%d bytes: %v, %v", len(test.data), err, answers[i].State)
				}
			case err != nil, answers[i].State != store.Done, string(answers[i].Record.Data) != string(settlements[i].Data):
				t.Errorf("%d bytes, element %d: %v, %v", len(test.data), i, err, answers[i].State)
			}
		}
	}
}

// TestServersLimits: a record that is too large for a limit of the server's, which the
// store does not know, fails alone: for packets that are smaller than when the store was
// opened, and for the binary log.
func TestServersLimits(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]func() *servertest.MariaDBServer{
		"max_allowed_packet": odd,
		"max_binlog_cache_size": func() *servertest.MariaDBServer {
			return servertest.MariaDB(t, &servertest.MariaDBOptions{NoSync: true, Settings: []string{
				"log-bin = log", "server-id = 1", "binlog_cache_size = 1M", "max_binlog_cache_size = 1M",
			}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, server().URL(), &Options{Prefix: testkit.Own(), PruneEvery: -1})
			s.packet = 64 << 20
			settlements, errs := make([]store.Settlement, 4), make([]error, 4)
			claims, answers := make([]store.Claim, 4), make([]store.Answer, 4)
			for i := range claims {
				k, token := store.Key{Name: fmt.Sprint(i)}, store.NewToken()
				claims[i] = store.Claim{Key: k, Token: token, TTL: time.Minute, Permits: 1, Weight: 1, MaxAge: time.Hour}
				settlements[i] = store.Settlement{Key: k, Token: token, Outcome: store.Keep, Data: bytes.Repeat([]byte("x"), 600<<10), Retention: time.Hour}
			}
			settlements[1].Data = bytes.Repeat([]byte("x"), 3<<20)
			testkit.Must(t, s.Claim(t.Context(), claims, answers))
			testkit.Must(t, s.Settle(t.Context(), settlements, errs))
			for i, err := range errs {
				switch {
				case i != 1 && err != nil:
					t.Errorf("record %d: %v", i, err)
				case i == 1 && (!errors.Is(err, store.ErrTooLarge) || !strings.Contains(err.Error(), "raise "+name)):
					t.Errorf("the large record: %v", err)
				}
			}
		})
	}
}

// TestSlowSweep: if a sweep has taken longer than the time between two sweeps, the next sweep still
// waits, until every claim knows the mark that the first sweep raised at its end.
func TestSlowSweep(t *testing.T) {
	t.Parallel()
	s := open(t, mariadb().URL(), &Options{Prefix: testkit.Own(), PruneEvery: -1})
	sqltest.Cycle(t, s, store.Key{Name: "k"})
	mariadb().Query(s.names.sql("UPDATE @key SET fence=fence+3600000000")) // the clock was an hour ahead
	mariadb().Query(s.names.sql("UPDATE @meta SET swept=0"))
	slow := takeSweep(t, s, true)
	mariadb().Query(s.names.sql("UPDATE @meta SET swept=swept-120000000"))
	if _, _, done, err := slow(t.Context(), 1<<30); err != nil || !done {
		t.Fatal(done, err)
	}
	takeSweep(t, s, false)
}

// TestPruneDeadlocks: what the server undoes because of a deadlock is done anew, and
// counted once.
func TestPruneDeadlocks(t *testing.T) {
	t.Parallel()
	s := open(t, mariadb().URL(), &Options{Prefix: testkit.Own(), PruneEvery: -1})
	db := openDB(t, mariadb().URL())
	for _, statement := range []string{
		"CREATE TABLE @key_falls (n INT) ENGINE=MEMORY", // which no rollback changes
		"INSERT INTO @key_falls VALUES (0)",
		`CREATE TRIGGER @record_falls BEFORE DELETE ON @record FOR EACH ROW BEGIN
			UPDATE @key_falls SET n=n+1;
			IF (SELECT n FROM @key_falls)=2 THEN SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO=1213; END IF;
		END`,
		`CREATE TRIGGER @holder_falls BEFORE DELETE ON @key FOR EACH ROW BEGIN
			UPDATE @key_falls SET n=n+1;
			IF (SELECT n FROM @key_falls)=10 THEN SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO=1213; END IF;
		END`,
	} {
		for _, name := range []string{"key_falls", "record_falls", "holder_falls"} {
			statement = strings.ReplaceAll(statement, "@"+name, s.names.table(name))
		}
		if _, err := db.ExecContext(t.Context(), s.names.sql(statement)); err != nil {
			t.Fatal(statement, err)
		}
	}
	const n = 4
	for i := range n {
		k, token, errs := store.Key{Name: fmt.Sprint(i)}, store.NewToken(), make([]error, 1)
		claims := []store.Claim{{Key: k, Token: token, TTL: time.Minute, Permits: 1, Weight: 1}}
		testkit.Must(t, s.Claim(t.Context(), claims, make([]store.Answer, 1)))
		err := s.Settle(t.Context(), []store.Settlement{{Key: k, Token: token, Outcome: store.Keep, Retention: time.Minute}}, errs)
		if err != nil || errs[0] != nil {
			t.Fatal(err, errs[0])
		}
	}
	mariadb().Query(s.names.sql("UPDATE @key SET rec_ends=1"))
	if removed, err := s.Prune(t.Context(), 0); err != nil || removed != n {
		t.Errorf("%d records, %v; want %d", removed, err, n)
	}
	sweepNow(t, mariadb(), s)
	mariadb().Query("UPDATE " + s.names.table("key_falls") + " SET n=8")
	sweepNow(t, mariadb(), s)
	for table, want := range map[string]string{"@key": "0", "@record": "0"} {
		if got := mariadb().Query(s.names.sql("SELECT COUNT(*) FROM " + table))[0][0]; got != want {
			t.Errorf("%s rows are left in %s, want %s", got, table, want)
		}
	}
	if tries := mariadb().Query("SELECT n FROM " + s.names.table("key_falls"))[0][0]; tries != "14" {
		t.Errorf("%s rows were tried, want 14: two, and all %d again", tries, n)
	}
}

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
