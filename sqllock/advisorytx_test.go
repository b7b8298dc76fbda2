package sqllock

import (
	"context"
	"database/sql"
	"errors"
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
