package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/internal/sqltest"
)

// bank is an application: a ledger, on the server on which the keys are too.
type bank struct {
	server *servertest.MariaDBServer
	s      *Store
	client *dibs.Client
	db     *sql.DB
	root   *sql.DB
	ledger string // its table
}

// newBank opens a bank with a store of its own. What its connections are like is in
// the parameters of the DSN.
func newBank(t testing.TB, server *servertest.MariaDBServer, params string) *bank {
	t.Helper()
	// No turn passes because the machine is slow.
	o := &Options{Prefix: testkit.Own(), pushedTTL: testkit.Limit}
	b := &bank{server: server, s: open(t, server.URL(), o), ledger: ledgerOf(o.Prefix)}
	b.client = sqltest.Client(t, b.s, nil)
	b.root = openDSN(t, server.DSN()+"?multiStatements=true")
	b.query(t, "CREATE TABLE "+b.ledger+" (what VARCHAR(200) NOT NULL, n INT NOT NULL DEFAULT 0) ENGINE = InnoDB")
	b.db = openDSN(t, server.DSN()+params)
	return b
}

// ledgerOf returns the name of the ledger beside a store.
func ledgerOf(prefix string) string { return "app." + prefix + "_ledger" }

// query has the superuser do something, and returns the rows that there are.
func (b *bank) query(t testing.TB, text string) (all [][]string) {
	t.Helper()
	rows, err := b.root.QueryContext(t.Context(), text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	for err == nil && rows.Next() {
		row, to := make([]string, len(columns)), make([]any, len(columns))
		for i := range row {
			to[i] = &row[i]
		}
		err = rows.Scan(to...)
		all = append(all, row)
	}
	if err = errors.Join(err, rows.Err()); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return all
}

// openDSN returns a pool of the application's.
func openDSN(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", dsn)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// book makes an entry, in a run of its own.
func (b *bank) book(ctx context.Context, tr store.Transactor, key string) (string, error) {
	return OnceTx(ctx, b.client, tr, key, nil, func(ctx context.Context, tx *sql.Tx) (string, error) {
		_, err := tx.ExecContext(ctx, b.entry(key))
		return "booked " + key, err
	})
}

// entry is the statement that makes an entry.
func (b *bank) entry(what string) string {
	return fmt.Sprintf("INSERT INTO %s (what) VALUES ('%s')", b.ledger, what)
}

// entries counts those of that name.
func (b *bank) entries(t testing.TB, what string) (n int) {
	t.Helper()
	if _, err := fmt.Sscan(b.query(t, "SELECT COUNT(*) FROM "+b.ledger+" WHERE what='"+what+"'")[0][0], &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// kinds are the transactions that there are.
var kinds = map[string]kind{
	"MariaDB":                 {"", sql.LevelDefault},
	"MariaDB, read committed": {"?clientFoundRows=true&autocommit=0", sql.LevelReadCommitted},
	"MariaDB, serializable":   {"?multiStatements=true", sql.LevelSerializable},
	"MariaDB, as Oracle":      {"?sql_mode='ORACLE'", sql.LevelDefault},
}

type kind struct {
	params string
	level  sql.IsolationLevel
}

// bankOf returns a bank, with transactions of that kind.
func bankOf(t *testing.T, name string) (*bank, store.Transactor) {
	t.Helper()
	kind := kinds[name]
	b := newBank(t, serverOf(name)(), kind.params)
	return b, b.s.Transactions(b.db, &sql.TxOptions{Isolation: kind.level})
}

// inEachKind runs a test with each kind of transaction there is.
func inEachKind(t *testing.T, test func(t *testing.T, b *bank, tr store.Transactor)) {
	t.Parallel()
	for name := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, tr := bankOf(t, name)
			test(t, b, tr)
		})
	}
}

// TestOwnCommit: a run that ends its transaction by database/sql has no answer kept, and
// what it keeps of its transaction is worth nothing when it is over.
func TestOwnCommit(t *testing.T) {
	inEachKind(t, func(t *testing.T, b *bank, tr store.Transactor) {
		var kept *sql.Tx
		for name, test := range map[string]struct {
			end     func(*sql.Tx) error
			entries int
		}{
			"Commit":   {(*sql.Tx).Commit, 1},
			"Rollback": {(*sql.Tx).Rollback, 0},
		} {
			_, err := OnceTx(t.Context(), b.client, tr, name, nil, func(ctx context.Context, tx *sql.Tx) (int, error) {
				kept = tx
				if other, ok := Tx(ctx); !ok || other != tx {
					t.Error("the context carries another transaction")
				}
				if _, err := tx.ExecContext(ctx, b.entry(name)); err != nil {
					return 0, err
				}
				return 0, test.end(tx)
			})
			if n := b.entries(t, name); !errors.Is(err, ErrTransactionEnded) || n != test.entries {
				t.Errorf("%s: %v, %d entries", name, err, n)
			}
			if got, err := b.book(t.Context(), tr, name); err != nil || got != "booked "+name {
				t.Errorf("%s: then %q, %v", name, got, err)
			}
		}
		if _, err := kept.ExecContext(t.Context(), "DO 0"); !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("after the run: %v, want ErrTxDone", err)
		}
		if _, ok := Tx(t.Context()); ok {
			t.Error("there is a transaction where none is")
		}
	})
}

// TestRowsLeftOpen: a run that has not read all rows of a query is not committed, and the error
// says why.
func TestRowsLeftOpen(t *testing.T) {
	inEachKind(t, func(t *testing.T, b *bank, tr store.Transactor) {
		_, err := OnceTx(t.Context(), b.client, tr, "k", nil, func(ctx context.Context, tx *sql.Tx) (int, error) {
			if _, err := tx.ExecContext(ctx, b.entry("k")); err != nil {
				return 0, err
			}
			rows, err := tx.QueryContext(ctx, "SELECT 1 UNION ALL SELECT 2")
			t.Cleanup(func() { _, _ = rows.Err(), rows.Close() })
			return 0, err
		})
		if n := b.entries(t, "k"); !errors.Is(err, store.ErrRolledBack) || !strings.Contains(err.Error(), "close them") || n != 0 {
			t.Errorf("%v, %d entries", err, n)
		}
	})
}

// TestConnectionSettings: whatever the application's connections have set, the answer
// is kept, bytes and all.
func TestConnectionSettings(t *testing.T) {
	answer := strings.Repeat("'\"`\\\x00\x1a\n%?;ä€", 300)
	onServers(t, func(t *testing.T, server *servertest.MariaDBServer) {
		b := newBank(t, server, "")
		server.Query("CREATE DATABASE `" + b.s.options.Prefix + " else`")
		for _, params := range []string{
			"charset=latin1", "charset=gbk", "charset=binary", "collation=utf8mb4_bin",
			"sql_mode=''", "sql_mode='ANSI_QUOTES'", "sql_mode='NO_BACKSLASH_ESCAPES'", "sql_mode='ANSI,HIGH_NOT_PRECEDENCE,STRICT_ALL_TABLES'",
			"interpolateParams=true", "parseTime=true&loc=Local", "time_zone='%2B13:00'", "time_zone='-11:30'",
			"columnsWithAlias=true", "rejectReadOnly=true", "checkConnLiveness=false", "sql_safe_updates=1", "sql_select_limit=1",
			"completion_type=1", "timestamp=1000000000", "compress=true", "maxAllowedPacket=1000000", "multiStatements=true",
			"lock_wait_timeout=1", "innodb_lock_wait_timeout=1", "transaction_isolation='READ-UNCOMMITTED'",
		} {
			if server == mariadb() {
				params = strings.Replace(params, "transaction_isolation", "tx_isolation", 1)
			}
			dsn := strings.Replace(server.DSN(), "/app", "/"+strings.ReplaceAll(b.s.options.Prefix+" else", " ", "%20"), 1) + "?" + params
			tr := b.s.Transactions(openDSN(t, dsn), nil)
			for range 2 {
				got, err := OnceTx(t.Context(), b.client, tr, params, nil, func(ctx context.Context, tx *sql.Tx) (string, error) {
					_, err := tx.ExecContext(ctx, "INSERT INTO "+b.ledger+" (what) VALUES ('k')")
					return answer, err
				})
				if err != nil || got != answer {
					t.Errorf("%s: %q, %v", params, got, err)
				}
			}
			if n := b.entries(t, "k"); n != 1 {
				t.Errorf("%s: %d entries", params, n)
			}
			server.Query("DELETE FROM " + b.ledger)
		}
	})
}
