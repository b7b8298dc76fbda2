package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
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
	o := &Options{Prefix: ownPrefix()}
	b := &bank{server: server, s: open(t, server.URL(), o), ledger: "app." + o.Prefix + "_ledger"}
	b.client = newClient(t, b.s, nil)
	b.root = openDSN(t, server.DSN()+"?multiStatements=true")
	b.query(t, "CREATE TABLE "+b.ledger+" (what VARCHAR(200) NOT NULL, n INT NOT NULL DEFAULT 0) ENGINE = InnoDB")
	b.db = openDSN(t, server.DSN()+params)
	return b
}

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
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// book makes an entry, in a run of its own.
func (b *bank) book(ctx context.Context, tr dibs.Transactor, key string) (string, error) {
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
var kinds = map[string]struct {
	server func() *servertest.MariaDBServer
	params string
	manner manner
	level  sql.IsolationLevel
}{
	"MariaDB":                  {mariadb, "", block, sql.LevelDefault},
	"MariaDB, read committed":  {mariadb, "?clientFoundRows=true&autocommit=0", block, sql.LevelReadCommitted},
	"MariaDB, serializable":    {mariadb, "", block, sql.LevelSerializable},
	"MariaDB, as Oracle":       {mariadb, "?sql_mode='ORACLE'", block, sql.LevelDefault},
	"MariaDB, several":         {mariadb, "?multiStatements=true", several, sql.LevelDefault},
	"MariaDB, apart":           {mariadb, "", apart, sql.LevelDefault},
	"MySQL":                    {mysqld, "", apart, sql.LevelDefault},
	"MySQL, read committed":    {mysqld, "?clientFoundRows=true&autocommit=0", apart, sql.LevelReadCommitted},
	"MySQL, several, repeated": {mysqld, "?multiStatements=true&clientFoundRows=true", several, sql.LevelRepeatableRead},
	"MySQL, several":           {mysqld, "?multiStatements=true", several, sql.LevelReadCommitted},
}

// inEachKind runs a test with each kind of transaction there is.
func inEachKind(t *testing.T, test func(t *testing.T, b *bank, tr dibs.Transactor)) {
	t.Parallel()
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBank(t, kind.server(), kind.params)
			tr := b.s.Transactions(b.db, &sql.TxOptions{Isolation: kind.level})
			tx, err := tr.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			tx.Rollback()
			// The best that they can, and what others can they can too.
			if have := &tr.(*transactor).pool.manner; strings.HasPrefix(name, "MariaDB") != (*have == block) || *have < kind.manner {
				t.Fatalf("the manner is %d, want %d", *have, kind.manner)
			} else {
				*have = kind.manner
			}
			test(t, b, tr)
		})
	}
}

// TestTransaction: what is done and its answer are there together, once, whoever
// asks.
func TestTransaction(t *testing.T) {
	inEachKind(t, func(t *testing.T, b *bank, tr dibs.Transactor) {
		answers := make(chan string, 16)
		other := newClient(t, b.s, nil)
		for i := range cap(answers) {
			client := b.client
			if i%2 == 0 {
				client = other
			}
			go func() {
				got, err := OnceTx(t.Context(), client, tr, "k", nil, func(ctx context.Context, tx *sql.Tx) (string, error) {
					_, err := tx.ExecContext(ctx, b.entry("k"))
					return fmt.Sprint("answer ", i), err
				})
				if err != nil {
					t.Error(err)
				}
				answers <- got
			}()
		}
		first := <-answers
		for range cap(answers) - 1 {
			if got := <-answers; got != first {
				t.Errorf("answered %q and %q", first, got)
			}
		}
		if n := b.entries(t, "k"); n != 1 {
			t.Errorf("%d entries, want 1", n)
		}
	})
}

// TestTransactionFails: a run that fails leaves no answer, and nothing that was in its
// transaction; and the next one runs.
func TestTransactionFails(t *testing.T) {
	boom := errors.New("boom")
	inEachKind(t, func(t *testing.T, b *bank, tr dibs.Transactor) {
		other := b.ledger + "_other"
		b.query(t, "CREATE TABLE "+other+" (id INT PRIMARY KEY) ENGINE = InnoDB")
		// What a run does after it has made its entry: statements, of which errors are
		// returned or not.
		for name, run := range map[string]struct {
			sql      []string
			swallows bool
			err      error // of the function
			is       error
			says     string
			entries  int // that are there all the same
		}{
			"error":             {err: boom, is: boom},
			"constraint":        {sql: []string{"INSERT INTO " + b.ledger + " VALUES (NULL, NULL)"}, says: "1048"},
			"COMMIT":            {sql: []string{"COMMIT"}, is: ErrEnded, entries: 1},
			"ROLLBACK":          {sql: []string{"ROLLBACK"}, is: ErrEnded},
			"begun anew":        {sql: []string{"ROLLBACK", "START TRANSACTION"}, is: ErrEnded},
			"chained":           {sql: []string{"ROLLBACK AND CHAIN"}, is: ErrEnded},
			"begun in between":  {sql: []string{"START TRANSACTION"}, is: ErrEnded, entries: 1},
			"definition":        {sql: []string{"CREATE TABLE " + other + "_new (id INT)", "DROP TABLE " + other + "_new"}, is: ErrEnded, entries: 1},
			"autocommit":        {sql: []string{"SET autocommit=0", "SET autocommit=1"}, is: ErrEnded, entries: 1},
			"connection ended":  {sql: []string{"KILL CONNECTION_ID()"}, swallows: true, is: dibs.ErrRolledBack},
			"LOCK TABLES":       {sql: []string{"LOCK TABLES " + other + " WRITE", "UNLOCK TABLES"}, is: ErrEnded, entries: 1},
			"a point not there": {sql: []string{"ROLLBACK TO SAVEPOINT nowhere"}, says: "1305"},
		} {
			ran := 0
			_, err := OnceTx(t.Context(), b.client, tr, name, nil, func(ctx context.Context, tx *sql.Tx) (string, error) {
				ran++
				if _, err := tx.ExecContext(ctx, b.entry(name)); err != nil {
					return "", err
				}
				for _, statement := range run.sql {
					if _, err := tx.ExecContext(ctx, statement); err != nil && !run.swallows {
						return "", err
					}
				}
				return "wrong", run.err
			})
			if err == nil || ran != 1 || run.is != nil && !errors.Is(err, run.is) || !strings.Contains(err.Error(), run.says) {
				t.Errorf("%s: after %d runs: %v; want %v and %q", name, ran, err, run.is, run.says)
			}
			n := b.entries(t, name)
			if n != run.entries && !strings.Contains(name, "autocommit") {
				t.Errorf("%s: %d entries are there, want %d", name, n, run.entries)
			}
			if got, err := b.book(t.Context(), tr, name); err != nil || got != "booked "+name {
				t.Errorf("%s: then %q, %v", name, got, err)
			}
			if again := b.entries(t, name); again != n+1 {
				t.Errorf("%s: then %d entries are there, after %d", name, again, n)
			}
		}
	})
}

// TestOwnCommit: a run that ends its transaction by database/sql has no answer kept, and
// what it keeps of its transaction is worth nothing when it is over.
func TestOwnCommit(t *testing.T) {
	inEachKind(t, func(t *testing.T, b *bank, tr dibs.Transactor) {
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
			if n := b.entries(t, name); !errors.Is(err, ErrEnded) || n != test.entries {
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

// TestRowsLeftOpen: a run that has not read to the end what it asked for is not
// committed, and told why.
func TestRowsLeftOpen(t *testing.T) {
	inEachKind(t, func(t *testing.T, b *bank, tr dibs.Transactor) {
		_, err := OnceTx(t.Context(), b.client, tr, "k", nil, func(ctx context.Context, tx *sql.Tx) (int, error) {
			if _, err := tx.ExecContext(ctx, b.entry("k")); err != nil {
				return 0, err
			}
			rows, err := tx.QueryContext(ctx, "SELECT 1 UNION ALL SELECT 2")
			t.Cleanup(func() { _, _ = rows.Err(), rows.Close() })
			return 0, err
		})
		if n := b.entries(t, "k"); !errors.Is(err, dibs.ErrRolledBack) || !strings.Contains(err.Error(), "close them") || n != 0 {
			t.Errorf("%v, %d entries", err, n)
		}
	})
}

// TestConnectionSettings: whatever the application's connections have set, the answer
// is kept, bytes and all.
func TestConnectionSettings(t *testing.T) {
	t.Parallel()
	answer := strings.Repeat("'\"`\\\x00\x1a\n%?;ä€", 300)
	for server, get := range map[string]func() *servertest.MariaDBServer{"MariaDB": mariadb, "MySQL": mysqld} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			b := newBank(t, get(), "")
			get().Query("CREATE DATABASE `" + b.s.options.Prefix + " else`")
			for _, params := range []string{
				"charset=latin1", "charset=gbk", "charset=binary", "collation=utf8mb4_bin",
				"sql_mode=''", "sql_mode='ANSI_QUOTES'", "sql_mode='NO_BACKSLASH_ESCAPES'", "sql_mode='ANSI,HIGH_NOT_PRECEDENCE,STRICT_ALL_TABLES'",
				"interpolateParams=true", "parseTime=true&loc=Local", "time_zone='%2B13:00'", "time_zone='-11:30'",
				"columnsWithAlias=true", "rejectReadOnly=true", "checkConnLiveness=false", "sql_safe_updates=1", "sql_select_limit=1",
				"completion_type=1", "timestamp=1000000000", "compress=true", "maxAllowedPacket=1000000", "multiStatements=true",
				"lock_wait_timeout=1", "innodb_lock_wait_timeout=1", "transaction_isolation='READ-UNCOMMITTED'",
			} {
				if server == "MariaDB" {
					params = strings.Replace(params, "transaction_isolation", "tx_isolation", 1)
				}
				dsn := strings.Replace(get().DSN(), "/app", "/"+strings.ReplaceAll(b.s.options.Prefix+" else", " ", "%20"), 1) + "?" + params
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
				get().Query("DELETE FROM " + b.ledger)
			}
		})
	}
}
