package sqlitestore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	modernc "modernc.org/sqlite"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// ledger is a store with a table of the application's beside it.
type ledger struct {
	t  testing.TB
	s  *Store
	db *sql.DB
	tr *transactor
	c  *dibs.Client
}

// newLedger makes the table in the file, which is the application's if shared.
func newLedger(t testing.TB, path string, o *Options) *ledger {
	t.Helper()
	s := openTest(t, path, o, hostClock)
	db, err := s.OpenDB()
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Check(t, db.Close()) })
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE IF NOT EXISTS ledger (k TEXT NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	c, err := dibs.New(s, &dibs.Options{Timeout: testkit.Limit})
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Check(t, c.Close()) })
	return &ledger{t: t, s: s, db: db, tr: s.Transactions(db).(*transactor), c: c}
}

func book(ctx context.Context, tx *sql.Tx, k string) (string, error) {
	_, err := tx.ExecContext(ctx, "INSERT INTO ledger (k) VALUES (?)", k)
	return "booked " + k, err
}

// once books under a key.
func (l *ledger) once(k string) (string, error) {
	return OnceTx(l.t.Context(), l.c, l.tr, k, nil, func(ctx context.Context, tx *sql.Tx) (string, error) {
		return book(ctx, tx, k)
	})
}

func (l *ledger) rows(k string) (n int) {
	l.t.Helper()
	testkit.Must(l.t, l.db.QueryRowContext(l.t.Context(), "SELECT count(*) FROM ledger WHERE k = ?", k).Scan(&n))
	return n
}

func (l *ledger) want(k string, n int) {
	l.t.Helper()
	if got := l.rows(k); got != n {
		l.t.Errorf("the ledger has %d rows of %q, not %d", got, k, n)
	}
}

// begin claims a key and begins a transaction that books it.
func (l *ledger) begin(ctx context.Context, c store.Claim) (store.Transaction, *sql.Tx) {
	l.t.Helper()
	mustGrant(l.t, l.s, c)
	tx, err := l.tr.Begin(ctx)
	testkit.Must(l.t, err)
	inner, ok := Tx(store.WithTransaction(ctx, tx))
	if !ok {
		_, err := Begin(store.WithTransaction(ctx, tx))
		l.t.Fatal("no transaction: ", err)
	}
	if _, err := book(ctx, inner, c.Key.Name); err != nil {
		l.t.Fatal(err)
	}
	return tx, inner
}

func keep(c store.Claim) store.Settlement {
	return store.Settlement{Key: c.Key, Token: c.Token, Outcome: store.Keep, Data: []byte("answer"), Retention: time.Hour}
}

// asked is a claim that a record answers.
func asked(name string) store.Claim {
	c := lock(name)
	c.MaxAge = store.AnyAge
	return c
}

func TestOnceTx(t *testing.T) {
	for _, shared := range []bool{false, true} {
		l := newLedger(t, testFile(t), &Options{Shared: shared})
		for range 3 {
			got, err := l.once("k")
			if err != nil || got != "booked k" {
				t.Errorf("once: %q, %v", got, err)
			}
		}
		l.want("k", 1)

		fails := errors.New("no")
		_, err := OnceTx(t.Context(), l.c, l.tr, "fails", nil, func(ctx context.Context, tx *sql.Tx) (string, error) {
			_, err := book(ctx, tx, "fails")
			return "", errors.Join(err, fails)
		})
		if !errors.Is(err, fails) {
			t.Errorf("a run that failed: %v", err)
		}
		l.want("fails", 0)
		if _, err := l.once("fails"); err != nil {
			t.Error(err)
		}
		l.want("fails", 1)

		func() {
			defer func() { _ = recover() }()
			_, _ = OnceTx(t.Context(), l.c, l.tr, "panics", nil, func(ctx context.Context, tx *sql.Tx) (string, error) {
				_, _ = book(ctx, tx, "panics")
				panic("no")
			})
		}()
		l.want("panics", 0)
		if _, err := l.once("panics"); err != nil {
			t.Error(err)
		}
	}
}

// Beside what the application does there are four statements in its transaction, however
// that begins, and one before it, which tells what file the connection is on.
func TestStatementsOfATransaction(t *testing.T) {
	l := newLedger(t, testFile(t), nil)
	const insert = "INSERT INTO ledger (k) VALUES (?)"
	texts := l.s.tables.texts()
	const file = "SELECT file FROM pragma_database_list WHERE name = 'main'"
	want := []string{file, texts["lock"], insert, texts["meta"], texts["endPlain"], texts["saveRecord"]}
	for _, txlock := range []string{"immediate", "deferred"} {
		traced := &tracedConnector{}
		c, err := modernc.NewConnector("file:" + filepath.ToSlash(l.s.names.full) + "?_pragma=busy_timeout(5000)&_txlock=" + txlock)
		testkit.Must(t, err)
		traced.Connector = c
		db := sql.OpenDB(traced)
		defer db.Close()
		l.tr = newTransactor(l.s, db)
		if _, err := l.once(txlock); err != nil {
			t.Error(err)
		}
		if !slices.Equal(traced.statements, want) {
			t.Errorf("%s: the statements are %q, not %q", txlock, traced.statements, want)
		}
		l.want(txlock, 1)
	}
}

// tracedConnector writes down the statements of its connections, one of which is used
// at a time.
type tracedConnector struct {
	driver.Connector
	statements []string
}

func (c *tracedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &tracedConn{moderncConn: conn.(moderncConn), c: c}, nil
}

type moderncConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ExecerContext
	driver.QueryerContext
	modernc.HookRegisterer
}

type tracedConn struct {
	moderncConn
	c *tracedConnector
}

func (c *tracedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c.c.statements = append(c.c.statements, query)
	return c.moderncConn.ExecContext(ctx, query, args)
}

func (c *tracedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	c.c.statements = append(c.c.statements, query)
	return c.moderncConn.QueryContext(ctx, query, args)
}

func TestOtherDatabase(t *testing.T) {
	l := newLedger(t, testFile(t), nil)
	elsewhere := newLedger(t, testFile(t), nil)
	memory, err := sql.Open("sqlite", ":memory:")
	testkit.Must(t, err)
	defer memory.Close()
	for name, db := range map[string]*sql.DB{"another file": elsewhere.db, "memory": memory} {
		l.tr = l.s.Transactions(db).(*transactor)
		if _, err := l.once("k"); !errors.Is(err, ErrOtherDB) || !strings.Contains(err.Error(), "OpenDB") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := l.s.Transactions(nil).Begin(t.Context()); err == nil {
		t.Error("without a DB there is no error")
	}
	if _, ok := Tx(t.Context()); ok {
		t.Error("a context without a transaction has one")
	}
}
