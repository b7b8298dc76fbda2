package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// transaction is what the tests need of one of any client.
type transaction struct {
	lock, try func(AdvisoryKey, *LockTxOptions) error
	setting   func() (string, error) // asks for lock_timeout
	end       func() error
}

// transactionURLs are where database/sql begins transactions. Nightly adds a pooler.
var transactionURLs = map[string]func() string{"database/sql": func() string { return postgres().URL() }}

// transactions begin one.
func transactions() map[string]func(t *testing.T) transaction {
	ways := map[string]func(t *testing.T) transaction{
		"pgx": func(t *testing.T) transaction {
			conn, err := pgx.Connect(t.Context(), postgres().URL())
			testkit.Must(t, err)
			t.Cleanup(func() { _ = conn.Close(context.Background()) })
			tx, err := conn.Begin(t.Context())
			testkit.Must(t, err)
			return transaction{
				lock: func(k AdvisoryKey, o *LockTxOptions) error { return LockTx(t.Context(), tx, k, o) },
				try:  func(k AdvisoryKey, o *LockTxOptions) error { return TryLockTx(t.Context(), tx, k, o) },
				setting: func() (s string, err error) {
					err = tx.QueryRow(t.Context(), "SELECT current_setting('lock_timeout')").Scan(&s)
					return s, err
				},
				end: func() error { return tx.Commit(t.Context()) },
			}
		},
	}
	for name, url := range transactionURLs {
		ways[name] = func(t *testing.T) transaction {
			tx, err := openDB(t, "pgx", withParameter(url(), "default_query_exec_mode", "exec")).BeginTx(t.Context(), nil)
			testkit.Must(t, err)
			t.Cleanup(func() { _ = tx.Rollback() })
			return transaction{
				lock: func(k AdvisoryKey, o *LockTxOptions) error { return LockTx(t.Context(), tx, k, o) },
				try:  func(k AdvisoryKey, o *LockTxOptions) error { return TryLockTx(t.Context(), tx, k, o) },
				setting: func() (s string, err error) {
					err = tx.QueryRowContext(t.Context(), "SELECT current_setting('lock_timeout')").Scan(&s)
					return s, err
				},
				end: tx.Commit,
			}
		}
	}
	return ways
}

func TestLockTx(t *testing.T) {
	t.Parallel()
	for name, begin := range transactions() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			one, two := begin(t), begin(t)
			key, shared := ownKey(), &LockTxOptions{Shared: true}
			testkit.Must(t, one.lock(key, nil))
			for _, o := range []*LockTxOptions{nil, shared} {
				if err := two.try(key, o); !errors.Is(err, dibs.ErrHeld) {
					t.Errorf("TryLockTx: %v", err)
				}
			}
			start := time.Now()
			err := two.lock(key, &LockTxOptions{Wait: 100 * time.Millisecond})
			if took := time.Since(start); !errors.Is(err, dibs.ErrHeld) || took < 100*time.Millisecond {
				t.Errorf("after %v: %v", took, err)
			}
			// The transaction continues, and nothing in it has changed.
			if now, err := two.setting(); err != nil || now != "0" {
				t.Errorf("lock_timeout is %q, %v", now, err)
			}
			got := make(chan error, 1)
			// More than the 24 days that the server can count.
			go func() { got <- two.lock(key, &LockTxOptions{Wait: 60 * 24 * time.Hour}) }()
			testkit.Eventually(t, "it waits", func() bool { return advisoryLocks(t, key) == 2 })
			testkit.Check(t, one.end())
			testkit.Check(t, <-got)
			if now, err := two.setting(); err != nil || now != "0" {
				t.Errorf("lock_timeout is %q, %v", now, err)
			}
			three := begin(t)
			if err := three.try(key, nil); !errors.Is(err, dibs.ErrHeld) {
				t.Errorf("what was waited for is not held: %v", err)
			}
			testkit.Check(t, two.end())
			testkit.Check(t, three.lock(key, shared))
			if err := begin(t).try(key, shared); err != nil {
				t.Errorf("beside a shared holder: %v", err)
			}
		})
	}
}

// A transaction that is aborted gives the lock up when it is over.
func TestLockTxAborted(t *testing.T) {
	t.Parallel()
	db, key := postgresDB(t), ownKey()
	tx, err := db.BeginTx(t.Context(), nil)
	testkit.Must(t, err)
	testkit.Must(t, LockTx(t.Context(), tx, key, nil))
	if _, err := tx.ExecContext(t.Context(), "SELECT 1/0"); err == nil {
		t.Error("no error")
	}
	if err := LockTx(t.Context(), tx, ownKey(), nil); !errors.Is(err, ErrServer) {
		t.Errorf("in an aborted transaction: %v", err)
	}
	testkit.Check(t, tx.Rollback())
	if n := advisoryLocks(t, key); n != 0 {
		t.Errorf("%d have it still", n)
	}
}

// A circle ends in an error, and with a Wait the transaction continues.
func TestLockTxDeadlock(t *testing.T) {
	t.Parallel()
	db, one, two := postgresDB(t), ownKey(), ownKey()
	first, other := beginTx(t, db), beginTx(t, db)
	if _, err := other.ExecContext(t.Context(), "SET LOCAL deadlock_timeout = '1h'"); err != nil {
		t.Fatal(err)
	}
	testkit.Must(t, errors.Join(LockTx(t.Context(), first, one, nil), LockTx(t.Context(), other, two, nil)))
	got := make(chan error, 1)
	go func() { got <- LockTx(t.Context(), other, one, nil) }()
	testkit.Eventually(t, "it waits", func() bool { return advisoryLocks(t, one) == 2 })
	if err := LockTx(t.Context(), first, two, &LockTxOptions{Wait: time.Minute}); !errors.Is(err, ErrDeadlock) {
		t.Error(err)
	}
	if _, err := first.ExecContext(t.Context(), "SELECT 1"); err != nil {
		t.Errorf("the transaction does not go on: %v", err)
	}
	testkit.Check(t, first.Rollback())
	testkit.Check(t, <-got)
}

func beginTx(t *testing.T, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// At repeatable read and serializable the holder of a lock would not see what the one
// before it committed: two bookings of one seat, and no error. So it is refused, with
// the cure, even after an earlier statement, and the transaction continues.
func TestLockTxIsRefusedInsideASnapshot(t *testing.T) {
	t.Parallel()
	db := postgresDB(t)
	for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
		for _, before := range []string{"", "SELECT 1"} {
			for name, lock := range map[string]func(Tx, AdvisoryKey) error{
				"LockTx":          func(tx Tx, k AdvisoryKey) error { return LockTx(t.Context(), tx, k, nil) },
				"LockTx and Wait": func(tx Tx, k AdvisoryKey) error { return LockTx(t.Context(), tx, k, &LockTxOptions{Wait: time.Minute}) },
				"LockTx, shared":  func(tx Tx, k AdvisoryKey) error { return LockTx(t.Context(), tx, k, &LockTxOptions{Shared: true}) },
				"TryLockTx":       func(tx Tx, k AdvisoryKey) error { return TryLockTx(t.Context(), tx, k, nil) },
			} {
				tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
				testkit.Must(t, err)
				if before != "" {
					if _, err := tx.ExecContext(t.Context(), before); err != nil {
						t.Fatal(err)
					}
				}
				key := ownKey()
				if err := lock(tx, key); !errors.Is(err, ErrIsolation) || !strings.Contains(err.Error(), "read committed") {
					t.Errorf("%s at %v after %q: %v", name, level, before, err)
				}
				if n := advisoryLocks(t, key); n != 0 {
					t.Errorf("%s at %v: %d have it", name, level, n)
				}
				if err := tx.Commit(); err != nil {
					t.Errorf("%s at %v: the transaction does not go on: %v", name, level, err)
				}
			}
		}
	}
	// What the session's default says counts as much as what BEGIN says.
	tx := beginTx(t, openDB(t, "pgx", withParameter(postgres().URL(), "default_transaction_isolation", "serializable")))
	if err := LockTx(t.Context(), tx, ownKey(), nil); !errors.Is(err, ErrIsolation) {
		t.Errorf("at a default of serializable: %v", err)
	}
}

func TestLockTxOfPgxIsRefusedInsideASnapshot(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), postgres().URL())
	testkit.Must(t, err)
	defer conn.Close(t.Context())
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		testkit.Must(t, err)
		for range 2 {
			err := errors.Join(LockTx(t.Context(), tx, ownKey(), nil), TryLockTx(t.Context(), tx, ownKey(), nil))
			if n := strings.Count(err.Error(), ErrIsolation.Error()); n != 2 {
				t.Errorf("at %s: %v", level, err)
			}
			if _, err := tx.Exec(t.Context(), "SELECT 1"); err != nil {
				t.Error(err)
			}
		}
		testkit.Check(t, tx.Commit(t.Context()))
	}
}

// A Sequence there would conflict with every other that takes a number meanwhile.
func TestSequenceIsRefusedInsideASnapshot(t *testing.T) {
	t.Parallel()
	b := bench{databases["postgres"], postgresDB(t)}
	s := newSequence(t, b, nil)
	cte, err := s.CTE("$1", "")
	testkit.Must(t, err)
	for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
		for _, scope := range []string{"a new one", "one that was begun"} {
			if scope != "a new one" {
				next(t, b, s, scope, 1)
			}
			tx, err := b.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
			testkit.Must(t, err)
			if n, err := s.Next(t.Context(), tx, scope); !errors.Is(err, ErrIsolation) || !strings.Contains(err.Error(), "read committed") {
				t.Errorf("at %v: number %d, %v", level, n, err)
			}
			if err := s.Raise(t.Context(), tx, scope, 7); !errors.Is(err, ErrIsolation) {
				t.Errorf("at %v: raised, %v", level, err)
			}
			var n int64
			err = tx.QueryRowContext(t.Context(), "WITH "+cte+" SELECT last FROM number", scope).Scan(&n)
			if err == nil || !strings.Contains(err.Error(), "read committed") {
				t.Errorf("at %v: number %d in a statement, %v", level, n, err)
			}
			testkit.Check(t, tx.Rollback())
		}
	}
	conn, err := pgx.Connect(t.Context(), postgres().URL())
	testkit.Must(t, err)
	defer conn.Close(t.Context())
	var schema string
	testkit.Must(t, b.QueryRowContext(t.Context(), "SELECT current_schema()").Scan(&schema))
	err = pgx.BeginTxFunc(t.Context(), conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "SET LOCAL search_path = "+schema); err != nil {
			return err
		}
		if n, err := s.Next(t.Context(), tx, "a new one"); !errors.Is(err, ErrIsolation) {
			t.Errorf("number %d, %v", n, err)
		}
		return nil
	})
	testkit.Check(t, err)
	if n := next(t, b, s, "a new one", 1); n != 1 {
		t.Errorf("what was refused took numbers: the first is %d", n)
	}
}

// Rows that are locked stand for others, too: what was committed to those while the
// caller waited for the rows must be visible.
func TestLockRowsInsideASnapshot(t *testing.T) {
	t.Parallel()
	b := bench{databases["postgres"], postgresDB(t)}
	b.accounts(t, 2)
	tx, err := b.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	testkit.Must(t, err)
	if ids, err := LockRows(t.Context(), PostgreSQL, tx, nil, "account", "id", int64(1), 2); !errors.Is(err, ErrIsolation) || errors.Is(err, dibs.ErrHeld) {
		t.Errorf("locked %v, %v", ids, err)
	}
	testkit.Check(t, tx.Rollback())
	for _, o := range []*sql.TxOptions{nil, {Isolation: sql.LevelSerializable}} { // which sees by itself what the snapshot has not
		tx, err := b.BeginTx(t.Context(), o)
		testkit.Must(t, err)
		if ids, err := LockRows(t.Context(), PostgreSQL, tx, nil, "account", "id", int64(2), 1); err != nil || len(ids) != 2 {
			t.Errorf("locked %v, %v", ids, err)
		}
		testkit.Check(t, tx.Rollback())
	}
}

// A row that stands for others: two callers look whether its seat is booked, and book it.
func TestUpdateInsideASnapshot(t *testing.T) {
	t.Parallel()
	b := bench{databases["postgres"], postgresDB(t)}
	b.accounts(t, 1)
	b.must(t, "CREATE TABLE booking (seat bigint)")
	for level, refused := range map[sql.IsolationLevel]bool{
		sql.LevelReadCommitted: false, sql.LevelRepeatableRead: true, sql.LevelSerializable: false,
	} {
		b.must(t, "DELETE FROM booking")
		o := b.accountOptions()
		o.Update, o.Values, o.Isolation, o.MaxTries = "", nil, level, 100
		row := newRow(t, PostgreSQL, o)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				_, err := row.Update(t.Context(), b.DB, func(ctx context.Context, tx *sql.Tx, _ *account) error {
					var booked int
					if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM booking WHERE seat = 1").Scan(&booked); err != nil || booked > 0 {
						return err
					}
					_, err := tx.ExecContext(ctx, "INSERT INTO booking VALUES (1)")
					return err
				}, 1)
				if errors.Is(err, ErrIsolation) != refused || !refused && err != nil {
					t.Errorf("at %v: %v", level, err)
				}
			})
		}
		all.Wait()
		if n := b.number(t, "SELECT count(*) FROM booking"); refused && n != 0 || !refused && n != 1 {
			t.Errorf("at %v the seat was booked %d times", level, n)
		}
	}
}

// packagePool is a pool as other packages wrap them: its transactions have a type of their
// own.
type packagePool struct{ *sql.DB }

func (p packagePool) BeginTx(ctx context.Context, o *sql.TxOptions) (packageTx, error) {
	tx, err := p.DB.BeginTx(ctx, o)
	return packageTx{tx}, err
}

type packageTx struct{ *sql.Tx }

// BeginTx stands for the savepoints of other packages.
func (t packageTx) BeginTx(context.Context, *sql.TxOptions) (packageTx, error) { return t, nil }

// A pool of another package is refused, because each statement would be committed alone. A
// transaction of another package is taken.
func TestTxOfAnotherPackage(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		s, pool := newSequence(t, b, nil), packagePool{b.DB}
		if _, err := s.Next(t.Context(), pool, "a"); err == nil || !strings.Contains(err.Error(), "is not a transaction") {
			t.Errorf("with a pool: %v", err)
		}
		tx, err := pool.BeginTx(t.Context(), nil)
		testkit.Must(t, err)
		defer tx.Rollback()
		if n, err := s.Next(t.Context(), tx, "a"); n != 1 || err != nil {
			t.Errorf("with a transaction: %d, %v", n, err)
		}
	})
}
