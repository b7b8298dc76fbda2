package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// Two callers that lock the same rows one by one, in opposite orders, are in a circle:
// what LockRows is for.
func TestWithoutLockRows(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		if b.d == SQLite {
			return // which has one lock, and no order of locks
		}
		b.accounts(t, 2)
		both := newBarrier(2)
		errs := make(chan error, 2)
		for _, ids := range [][]int64{{1, 2}, {2, 1}} {
			go func() {
				first := true
				errs <- Transact(t.Context(), b.d, b.DB, &TransactOptions{MaxTries: 1}, func(ctx context.Context, tx *sql.Tx) error {
					for _, id := range ids {
						if _, err := LockRows(ctx, b.d, tx, nil, "account", "id", id); err != nil {
							return err
						}
						if first {
							first = false
							both.wait(t)
						}
					}
					return nil
				})
			}()
		}
		first, second := <-errs, <-errs
		if !errors.Is(errors.Join(first, second), ErrConflict) || first != nil && second != nil {
			t.Errorf("one should be given up for the other: %v, %v", first, second)
		}
	})
}

func TestLockRows(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		const rows, rounds = 20, 15
		b.accounts(t, rows)
		var ids []int64
		for id := range rows {
			ids = append(ids, int64(id+1))
		}
		backwards := slices.Clone(ids)
		slices.Reverse(backwards)
		var wg sync.WaitGroup
		for _, mine := range [][]int64{ids, backwards, ids[5:], backwards[5:]} {
			wg.Go(func() {
				for range rounds {
					err := Transact(t.Context(), b.d, b.DB, &TransactOptions{MaxTries: 1}, func(ctx context.Context, tx *sql.Tx) error {
						locked, err := LockRows(ctx, b.d, tx, nil, "account", "id", mine...)
						if err != nil {
							return err
						}
						if len(locked) != len(mine) || !slices.IsSorted(locked) {
							t.Errorf("locked are %v", locked)
						}
						// Two read, and write what they read, so that it would show if
						// they had the rows together.
						var balance int64
						if err := tx.QueryRowContext(ctx, b.sql("SELECT balance FROM account WHERE id = $1"), 10).Scan(&balance); err != nil {
							return err
						}
						_, err = tx.ExecContext(ctx, b.sql("UPDATE account SET balance = $1 WHERE id = $2"), balance+1, 10)
						return err
					})
					testkit.Check(t, err)
				}
			})
		}
		wg.Wait()
		if got := b.number(t, "SELECT balance FROM account WHERE id = 10"); got != 100+4*rounds {
			t.Errorf("the balance is %d after %d increments from 100", got, 4*rounds)
		}
	})
}

func TestLockRowsFinds(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		b.accounts(t, 3)
		err := Transact(t.Context(), b.d, b.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
			locked, err := LockRows(ctx, b.d, tx, nil, "account", "id", 3, 1, 3, 7, 9)
			missing, ok := errors.AsType[*MissingRowsError](err)
			if !ok || !errors.Is(err, sql.ErrNoRows) || !slices.Equal(missing.IDs, []any{7, 9}) || !slices.Equal(locked, []int{1, 3}) {
				t.Errorf("%v, %v", locked, err)
			}
			if want := "the table account has no rows 7, 9"; !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not say that %s", err, want)
			}
			locked, err = LockRows[int](ctx, b.d, tx, nil, "account", "id")
			if len(locked) != 0 || err != nil {
				t.Errorf("of no ids: %v, %v", locked, err)
			}
			_, err = LockRows(ctx, b.d, tx, nil, "account", "id", make([]int, maxRows+1)...)
			if !errors.Is(err, sql.ErrNoRows) { // all are the same
				t.Error(err)
			}
			many := make([]int, maxRows+1)
			for i := range many {
				many[i] = i
			}
			if _, err := LockRows(ctx, b.d, tx, nil, "account", "id", many...); err == nil || errors.Is(err, sql.ErrNoRows) {
				t.Errorf("of %d ids: %v", len(many), err)
			}
			locked, err = LockRows(ctx, b.d, tx, nil, "account", "id", many[:maxRows]...)
			if len(locked) != 3 || !errors.Is(err, sql.ErrNoRows) || !strings.HasSuffix(err.Error(), "and 9987 more") {
				t.Errorf("%v, %v", locked, err)
			}
			return nil
		})
		testkit.Check(t, err)
		if _, err := LockRows(t.Context(), b.d, b.DB, nil, "account", "id", 1); err == nil || !strings.Contains(err.Error(), "*sql.DB is not a transaction") {
			t.Errorf("without a transaction: %v", err)
		}
	})
}

// A locked row is refused, skipped, or waited for.
func TestLockRowsHeld(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		b.accounts(t, 3)
		release := b.holdRow(t, 2)
		// By hand: SQLite's driver waits by itself, and has to be kept from that.
		in := func(l *RowLock) (ids []int, err error) {
			tx, err := b.BeginTx(t.Context(), nil)
			testkit.Must(t, err)
			defer tx.Rollback()
			return LockRows(t.Context(), b.d, tx, l, "account", "id", 3, 2, 1)
		}
		if ids, err := in(&RowLock{Wait: NoWait}); !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("no wait: %v, %v", ids, err)
		}
		if b.d == MySQL {
			if _, err := in(&RowLock{Wait: time.Second}); err == nil || !strings.Contains(err.Error(), "NoWait") {
				t.Errorf("MySQL waits for a second: %v", err)
			}
		} else {
			since := time.Now()
			ids, err := in(&RowLock{Wait: 250 * time.Millisecond})
			if waited := time.Since(since); !errors.Is(err, dibs.ErrHeld) || waited < 225*time.Millisecond {
				t.Errorf("after %v: %v, %v", waited, ids, err)
			}
		}
		if b.d != SQLite {
			if ids, err := in(&RowLock{SkipLocked: true}); err != nil || !slices.Equal(ids, []int{1, 3}) {
				t.Errorf("those that are not locked: %v, %v", ids, err)
			}
		}
		release()
		for _, l := range []*RowLock{nil, {Wait: NoWait}, {SkipLocked: true}, {NoKey: true}} {
			if ids, err := in(l); err != nil || !slices.Equal(ids, []int{1, 2, 3}) {
				t.Errorf("then: %v, %v", ids, err)
			}
		}
	})
}

// The rows are locked until the transaction ends, also for transactions that do not use
// LockRows.
func TestLockRowsLocks(t *testing.T) {
	onEach(t, func(t *testing.T, b bench) {
		b.accounts(t, 2)
		tx, err := b.BeginTx(t.Context(), nil)
		testkit.Must(t, err)
		defer tx.Rollback()
		if _, err := LockRows(t.Context(), b.d, tx, nil, "account", "id", 1); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := b.ExecContext(t.Context(), "UPDATE account SET balance = balance * 2 WHERE id = 1")
			done <- err
		}()
		if _, err := tx.ExecContext(t.Context(), "UPDATE account SET balance = balance + 1 WHERE id = 1"); err != nil {
			t.Error(err)
		}
		if len(done) > 0 {
			t.Error("another transaction has written")
		}
		testkit.Check(t, tx.Commit())
		testkit.Check(t, <-done)
		if got := b.number(t, "SELECT balance FROM account WHERE id = 1"); got != 202 {
			t.Errorf("the balance is %d; want 202", got)
		}
	})
}

func TestLockRowsPgx(t *testing.T) {
	t.Parallel()
	b := bench{database: databases["postgres"], DB: postgresDB(t)}
	b.accounts(t, 2)
	tx := pgxTx(t, b)
	ids, err := LockRows(t.Context(), PostgreSQL, tx, &RowLock{Wait: time.Second}, "account", "id", 2, 1)
	if err != nil || !slices.Equal(ids, []int{1, 2}) {
		t.Errorf("%v, %v", ids, err)
	}
	if ids, err := LockRows(t.Context(), PostgreSQL, tx, nil, "account", "id", 2, 3); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("%v, %v", ids, err)
	}
}

// pgxTx begins a transaction of pgx on the bench's schema; it is rolled back with the
// test.
func pgxTx(t testing.TB, b bench) pgx.Tx {
	t.Helper()
	var schema string
	testkit.Must(t, b.QueryRowContext(t.Context(), "SELECT current_schema()").Scan(&schema))
	conn, err := pgx.Connect(t.Context(), withParameter(postgres().URL(), "search_path", schema))
	testkit.Must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	tx, err := conn.Begin(t.Context())
	testkit.Must(t, err)
	return tx
}
