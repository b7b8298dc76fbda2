package sqlitestore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	modernc "modernc.org/sqlite"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/sqlitestore/internal/lite"
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

// A transaction without a call of Tx settles the key, and locks nothing.
func TestTransactionNobodyAskedFor(t *testing.T) {
	l := newLedger(t, testFile(t), nil)
	for range 2 {
		got, err := dibs.OnceIn(t.Context(), l.c, l.tr, "k", nil, func(context.Context) (int, error) {
			return 7, l.c.Do(t.Context(), "another", func(context.Context) error { return nil })
		})
		if err != nil || got != 7 {
			t.Errorf("once: %v, %v", got, err)
		}
	}
}

// A function that ends the transaction itself has done nothing.
func TestRunEndsItsTransaction(t *testing.T) {
	l := newLedger(t, testFile(t), nil)
	exec := func(tx *sql.Tx, statements ...string) error {
		var errs []error
		for _, s := range statements {
			_, err := tx.ExecContext(t.Context(), s)
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	for _, test := range []struct {
		name    string
		end     func(*sql.Tx) error
		refused bool // what it calls fails
	}{
		{"Commit", (*sql.Tx).Commit, true},
		{"Rollback", (*sql.Tx).Rollback, false},
		{"COMMIT", func(tx *sql.Tx) error { return exec(tx, "COMMIT") }, true},
		{"END", func(tx *sql.Tx) error { return exec(tx, "END TRANSACTION") }, true},
		{"COMMIT and BEGIN", func(tx *sql.Tx) error { return exec(tx, "COMMIT", "BEGIN") }, true},
		{"ROLLBACK", func(tx *sql.Tx) error { return exec(tx, "ROLLBACK") }, false},
		{"ROLLBACK and more", func(tx *sql.Tx) error {
			return exec(tx, "ROLLBACK", "INSERT INTO ledger (k) VALUES ('ROLLBACK and more')")
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := lock(test.name)
			tx, inner := l.begin(t.Context(), c)
			if err := test.end(inner); (err != nil) != test.refused {
				t.Errorf("ending it: %v", err)
			}
			err := tx.Commit(t.Context(), keep(c))
			if !errors.Is(err, store.ErrRolledBack) || !errors.Is(err, ErrTransactionEnded) {
				t.Errorf("commit: %v", err)
			}
			l.want(test.name, 0)
			wantState(t, "the key", claimOne(t, l.s, asked(test.name)), store.Held)
			mustSettle(t, l.s, release(c))
			if _, err := l.db.ExecContext(t.Context(), "INSERT INTO ledger (k) VALUES (?)", test.name); err != nil {
				t.Errorf("the connection refuses other commits: %v", err)
			}
			l.want(test.name, 1)
		})
	}
}

// Savepoints are the run's own.
func TestSavepoints(t *testing.T) {
	l := newLedger(t, testFile(t), nil)
	got, err := OnceTx(t.Context(), l.c, l.tr, "k", nil, func(ctx context.Context, tx *sql.Tx) (string, error) {
		for _, s := range []string{
			"SAVEPOINT a", "INSERT INTO ledger (k) VALUES ('undone')", "ROLLBACK TO a", "RELEASE a",
			"SAVEPOINT b", "INSERT INTO ledger (k) VALUES ('k')", "RELEASE b",
		} {
			if _, err := tx.ExecContext(ctx, s); err != nil {
				return "", err
			}
		}
		return "done", nil
	})
	if err != nil || got != "done" {
		t.Error(got, err)
	}
	l.want("k", 1)
	l.want("undone", 0)
}

// A transaction whose context ends unlocks the file, even if the function does not notice.
func TestTransactionOfAContext(t *testing.T) {
	l := newLedger(t, testFile(t), &Options{LockWait: time.Minute})
	ctx, cancel := context.WithCancelCause(t.Context())
	c := lock("k")
	tx, _ := l.begin(ctx, c)
	why := errors.New("out of time")
	cancel(why)
	mustGrant(t, l.s, lock("another"))
	l.want("k", 0)
	if err := tx.Commit(t.Context(), keep(c)); !errors.Is(err, store.ErrRolledBack) || !errors.Is(err, why) {
		t.Errorf("commit: %v", err)
	}
	wantState(t, "the key", claimOne(t, l.s, asked("k")), store.Held)
}

// While one transaction is open all others wait, in this process and through other
// Stores, and no longer than LockWait.
func TestTransactionsWait(t *testing.T) {
	path := testFile(t)
	l := newLedger(t, path, &Options{LockWait: time.Second, PruneEvery: -1})
	other := newLedger(t, path, &Options{LockWait: 50 * time.Millisecond, PruneEvery: -1})
	c := lock("k")
	tx, _ := l.begin(t.Context(), c)
	for _, waits := range []*ledger{l, other} {
		w, err := waits.tr.Begin(t.Context())
		testkit.Must(t, err)
		_, err = Begin(store.WithTransaction(t.Context(), w))
		if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), cures[ErrLocked]) {
			t.Errorf("a transaction meanwhile: %v", err)
		}
		if _, ok := Tx(store.WithTransaction(t.Context(), w)); ok {
			t.Error("there is a transaction all the same")
		}
		if err := w.Commit(t.Context(), keep(c)); !errors.Is(err, store.ErrRolledBack) || !errors.Is(err, ErrLocked) || w.Conflicted(err) {
			t.Errorf("commit without one: %v", err)
		}
	}
	if err := l.s.Claim(t.Context(), []store.Claim{lock("other")}, make([]store.Answer, 1)); !errors.Is(err, ErrLocked) {
		t.Errorf("a claim meanwhile: %v", err)
	}
	a := claimOne(t, other.s, lock("other"))
	if !errors.Is(a.Err, store.ErrBusy) || !errors.Is(a.Err, ErrLocked) {
		t.Errorf("a claim of another process meanwhile: %+v", a)
	}
	if err := settleOne(t, other.s, keep(c)); !errors.Is(err, store.ErrBusy) {
		t.Errorf("a settlement of another process meanwhile: %v", err)
	}
	testkit.Must(t, tx.Commit(t.Context(), keep(c)))
	if _, err := l.once("then"); err != nil {
		t.Error(err)
	}
	l.want("then", 1)
}

// Readers that write later do not conflict with earlier writers.
func TestReadThenWrite(t *testing.T) {
	l := newLedger(t, testFile(t), nil)
	if _, err := l.db.ExecContext(t.Context(), "CREATE TABLE balance (n INTEGER)"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.db.ExecContext(t.Context(), "INSERT INTO balance VALUES (0)"); err != nil {
		t.Fatal(err)
	}
	var runs sync.WaitGroup
	for i := range 50 {
		runs.Go(func() {
			_, err := OnceTx(t.Context(), l.c, l.tr, "k"+string(rune('A'+i)), nil, func(ctx context.Context, tx *sql.Tx) (int, error) {
				n := 0
				if err := tx.QueryRowContext(ctx, "SELECT n FROM balance").Scan(&n); err != nil {
					return 0, err
				}
				_, err := tx.ExecContext(ctx, "UPDATE balance SET n = ?", n+1)
				return n, err
			})
			testkit.Check(t, err)
		})
	}
	runs.Wait()
	n := 0
	if err := l.db.QueryRowContext(t.Context(), "SELECT n FROM balance").Scan(&n); err != nil || n != 50 {
		t.Errorf("the balance is %d, %v", n, err)
	}
}

// A record that is too large is committed with nothing.
func TestTransactionWithALargeRecord(t *testing.T) {
	l := newLedger(t, testFile(t), &Options{MaxRecord: 10})
	c := lock("k")
	tx, _ := l.begin(t.Context(), c)
	x := keep(c)
	x.Data = make([]byte, 11)
	if err := tx.Commit(t.Context(), x); !errors.Is(err, store.ErrRolledBack) || !errors.Is(err, store.ErrFull) {
		t.Errorf("commit: %v", err)
	}
	l.want("k", 0)
}

// When there is no room for what is written, or for the note, all is undone, and the
// lease stands for another try.
func TestTransactionOnAFullDisk(t *testing.T) {
	l := newLedger(t, testFile(t), nil)
	l.db.SetMaxOpenConns(1)
	c := lock("k")
	tx, inner := l.begin(t.Context(), c)
	if _, err := inner.ExecContext(t.Context(), "PRAGMA max_page_count = 50"); err != nil {
		t.Fatal(err)
	}
	x := keep(c)
	x.Data = make([]byte, 1<<20)
	if err := tx.Commit(t.Context(), x); !errors.Is(err, store.ErrRolledBack) || !errors.Is(err, ErrDiskFull) {
		t.Errorf("commit: %v", err)
	}
	l.want("k", 0)
	if _, err := l.db.ExecContext(t.Context(), "PRAGMA max_page_count = 1000000"); err != nil {
		t.Fatal(err)
	}
	tx, err := l.tr.Begin(t.Context())
	testkit.Must(t, err)
	inner, _ = Tx(store.WithTransaction(t.Context(), tx))
	if _, err := book(t.Context(), inner, "k"); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context(), x); err != nil {
		t.Errorf("when there is room: %v", err)
	}
	l.want("k", 1)
	wantState(t, "the key", claimOne(t, l.s, asked("k")), store.Done)
}

// A function that met another connection's lock runs again.
func TestConflict(t *testing.T) {
	path := testFile(t)
	l := newLedger(t, path, nil)
	elsewhere := testFile(t)
	sqlite(t, elsewhere, "CREATE TABLE other (n)", "BEGIN IMMEDIATE")
	other, err := sql.Open("sqlite", "file:"+elsewhere)
	testkit.Must(t, err)
	defer other.Close()
	runs := 0
	got, err := OnceTx(t.Context(), l.c, l.tr, "k", nil, func(ctx context.Context, tx *sql.Tx) (string, error) {
		answer, err := book(ctx, tx, "k")
		if runs++; runs < 3 && err == nil {
			_, err = other.ExecContext(ctx, "INSERT INTO other VALUES (1)")
		}
		return answer, err
	})
	if err != nil || got != "booked k" || runs != 3 {
		t.Errorf("after %d runs: %q, %v", runs, got, err)
	}
	l.want("k", 1)
	runs = -10
	if _, err := OnceTx(t.Context(), l.c, l.tr, "all", nil, func(ctx context.Context, tx *sql.Tx) (string, error) {
		runs++
		_, err := other.ExecContext(ctx, "INSERT INTO other VALUES (1)")
		return "", err
	}); !isCode(err, lite.Busy) || runs != dibs.MaxConflicts-10 {
		t.Errorf("after %d runs: %v", runs+10, err)
	}
}

// The lease cannot be renewed while its transaction has the file locked, and so bounds
// it: see TestTransactionAtTheEndOfALease for what becomes of it then.
func TestLeaseIsNotRenewedMeanwhile(t *testing.T) {
	l := newLedger(t, testFile(t), &Options{LockWait: time.Hour})
	c := lock("k")
	tx, _ := l.begin(t.Context(), c)
	ctx, cancel := context.WithCancel(t.Context())
	renewed := make(chan error, 1)
	go func() {
		renewed <- l.s.Renew(ctx, []store.Renewal{{Key: c.Key, Token: c.Token, TTL: time.Hour}}, make([]error, 1))
	}()
	testkit.Eventually(t, "the renewal waits", l.s.isBlocked)
	cancel()
	if err := testkit.Await(t, "giving up", renewed); !errors.Is(err, ErrLocked) {
		t.Errorf("a renewal meanwhile: %v", err)
	}
	testkit.Check(t, tx.Commit(t.Context(), keep(c)))
	l.want("k", 1)
}
