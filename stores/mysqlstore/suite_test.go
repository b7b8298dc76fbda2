package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// suite describes this store, on a server, to package sqltest.
func suite(server *servertest.MariaDBServer) *sqltest.Kind {
	return &sqltest.Kind{
		Server: server,
		Own: func(t testing.TB, connections int) sqltest.Server {
			return servertest.MariaDB(t, &servertest.MariaDBOptions{MaxConnections: connections})
		},
		Open: func(t testing.TB, url, name string, pruneEvery time.Duration) sqltest.Store {
			return open(t, url, &Options{Prefix: name, PruneEvery: pruneEvery})
		},
		DB: openDB,
		Apart: func(_ testing.TB, server sqltest.Server) (url, connections string) {
			user := testkit.Own()
			server.Query(fmt.Sprintf("CREATE USER %s@'127.0.0.1'; GRANT ALL ON app.* TO %[1]s@'127.0.0.1'", user))
			return strings.Replace(server.URL(), "root@", user+"@", 1), "SELECT id FROM information_schema.processlist WHERE user='" + user + "'"
		},
		Skewed: func(t testing.TB, name string) (func() sqltest.Store, func(time.Duration)) {
			var off atomic.Int64
			return func() sqltest.Store { return openWrong(t, server, name, &off) }, func(back time.Duration) { off.Store(-int64(back.Seconds())) }
		},
		Names:      func(s sqltest.Store, text string) string { return s.(*Store).names.sql(text) },
		Bytes:      "x'%x'",
		End:        "KILL %s",
		NewKey:     "INSERT INTO @key (k,fence) VALUES (%s,0)",
		RunOut:     "UPDATE @key SET ends=since+1 WHERE ends>0",
		Random:     "RAND()",
		Sleep:      "DO SLEEP(%f)",
		CommitText: "COMMIT",
		LockWait:   4 * time.Second,
		SweepSoon:  "UPDATE @meta SET swept=0",
		Later:      "UPDATE @meta SET swept=swept-120000000",
		Forget:     func(t testing.TB, s sqltest.Store) { forget(t, server, s.(*Store)) },
		KeepSweep:  func(ctx context.Context, s sqltest.Store) error { return s.(*Store).keepSweep(ctx) },
		TakeSweep: func(ctx context.Context, s sqltest.Store) (bool, error) {
			sweep, err := s.(*Store).takeSweep(ctx)
			return sweep != nil, err
		},
		Records: []string{"@record", "@key WHERE rec_ends>0"},
		Locked:  ErrLocked, Crowded: ErrCrowded, Explain: explain,
	}
}

// wrongClock has a store believe that the server's clock is off. It stands between it
// and its driver, and changes what is read of the clock.
type wrongClock struct {
	driver.Connector
	off *atomic.Int64 // seconds
}

func (w wrongClock) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := w.Connector.Connect(ctx)
	return wrongConn{conn, w.off}, err
}

type wrongConn struct {
	driver.Conn
	off *atomic.Int64
}

func (w wrongConn) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	text = strings.ReplaceAll(text, clock, fmt.Sprintf("(%s+%d)", clock, w.off.Load()*1e6))
	return w.Conn.(driver.QueryerContext).QueryContext(ctx, text, args)
}

// openWrong opens a store with such a clock.
func openWrong(t testing.TB, server *servertest.MariaDBServer, prefix string, off *atomic.Int64) *Store {
	t.Helper()
	s := open(t, server.URL(), &Options{Prefix: prefix, PruneEvery: -1})
	c, err := mysql.NewConnector(s.config)
	testkit.Must(t, err)
	for _, db := range []**sql.DB{&s.front, &s.back, &s.polls} {
		testkit.Check(t, (*db).Close())
		*db = sql.OpenDB(wrongClock{connector{c}, off})
		(*db).SetMaxIdleConns(frontConns)
	}
	return s
}

func TestServer(t *testing.T) {
	onServers(t, func(t *testing.T, server *servertest.MariaDBServer) {
		suite(server).Run(t)
	})
}

// suiteBank opens a bank of the suite's, with transactions of that kind.
func suiteBank(t *testing.T, name string) *sqltest.Bank {
	b, tr := bankOf(t, name)
	own := func(ctx context.Context) *transaction { return store.TransactionFrom(ctx).(*transaction) }
	return &sqltest.Bank{
		Kind: suite(b.server), URL: b.server.URL(), Name: b.s.options.Prefix, Store: b.s, Client: b.client,
		Transactor: tr, DB: b.root, Ledger: b.ledger, Exec: exec,
		Over: func(addr string) store.Transactor {
			return b.s.Transactions(openDSN(t, b.server.DSNAt(addr)+kinds[name].params), &sql.TxOptions{Isolation: kinds[name].level})
		},
		Settle: func(ctx context.Context, x store.Settlement) error { return b.settleOnly(ctx, own(ctx), x) },
		Connection: func(ctx context.Context) (number string, err error) {
			err = own(ctx).tx.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&number)
			return number, err
		},
		Commit: func(ctx context.Context) error { return own(ctx).tx.Commit() },
	}
}

// exec carries SQL out in a transaction.
func exec(ctx context.Context, text string) error {
	tx, _ := Tx(ctx)
	_, err := tx.ExecContext(ctx, text)
	return err
}

// failing is how runs fail.
func failing(b *sqltest.Bank) map[string]sqltest.Failing {
	boom := errors.New("boom")
	other := b.Ledger + "_other"
	b.Server.Query("CREATE TABLE " + other + " (id INT PRIMARY KEY) ENGINE = InnoDB")
	return map[string]sqltest.Failing{
		"error":             {Err: boom, Is: boom},
		"constraint":        {SQL: []string{"INSERT INTO " + b.Ledger + " VALUES (NULL, NULL)"}, Says: "1048"},
		"COMMIT":            {SQL: []string{"COMMIT"}, Is: ErrTransactionEnded, Entries: 1},
		"ROLLBACK":          {SQL: []string{"ROLLBACK"}, Is: ErrTransactionEnded},
		"begun anew":        {SQL: []string{"ROLLBACK", "START TRANSACTION"}, Is: ErrTransactionEnded},
		"chained":           {SQL: []string{"ROLLBACK AND CHAIN"}, Is: ErrTransactionEnded},
		"begun in between":  {SQL: []string{"START TRANSACTION"}, Is: ErrTransactionEnded, Entries: 1},
		"definition":        {SQL: []string{"CREATE TABLE " + other + "_new (id INT)", "DROP TABLE " + other + "_new"}, Is: ErrTransactionEnded, Entries: 1},
		"autocommit":        {SQL: []string{"SET autocommit=0", "SET autocommit=1"}, Is: ErrTransactionEnded, Entries: -1},
		"connection ended":  {SQL: []string{"KILL CONNECTION_ID()"}, Swallows: true, Is: store.ErrRolledBack},
		"LOCK TABLES":       {SQL: []string{"LOCK TABLES " + other + " WRITE", "UNLOCK TABLES"}, Is: ErrTransactionEnded, Entries: 1},
		"a point not there": {SQL: []string{"ROLLBACK TO SAVEPOINT nowhere"}, Says: "1305"},
	}
}

func TestTransactions(t *testing.T) {
	t.Parallel()
	for name := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sqltest.Transactions(t, func(t *testing.T) *sqltest.Bank { return suiteBank(t, name) }, failing)
		})
	}
}

// TestKilled: processes are killed on the way from a claim to an answer.
func TestKilled(t *testing.T) {
	t.Parallel()
	for name := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sqltest.Killed(t, func(t *testing.T) *sqltest.Bank { return suiteBank(t, name) }, func(b *sqltest.Bank) []string {
				return []string{b.URL, servers[name]().DSN(), b.Name}
			})
		})
	}
}

// beChild is what the test binary does as a child: a run of a bank that is there.
func beChild(args []string) error {
	ctx, url, dsn, prefix := context.Background(), args[0], args[1], args[2]
	s, err := Open(ctx, url, &Options{Prefix: prefix, PruneEvery: -1})
	if err != nil {
		return err
	}
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return err
	}
	return sqltest.RunOnce(ctx, s, s.Transactions(db, nil), ledgerOf(prefix), exec)
}
