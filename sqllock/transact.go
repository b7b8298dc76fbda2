package sqllock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// TransactOptions configures Transact. nil and the zero value mean the defaults.
type TransactOptions struct {
	// Isolation is the level of the transaction. 0: the database's default. SQLite has
	// one level, serializable.
	Isolation sql.IsolationLevel
	// MaxTries bounds how often the transaction is tried after conflicts. 0: 10. 1: fn
	// runs once.
	MaxTries int
	// Observe is called when a try has begun (acquired) and when it has ended: released after a
	// commit or a rollback, abandoned after a conflict, lost if the commit was not answered. A call
	// whose last try did not begin is refused. Waited is the time since the call or the try
	// before; on SQLite it has the wait for the file. Default: none.
	Observe Observer
}

// Transact runs fn in a transaction and commits it. After a conflict (see
// Dialect.Conflicted) it rolls back, pauses for a short random time, and begins again. So
// fn must do nothing that a rollback does not undo, such as sending a message, and must
// return the errors that it gets. On SQLite the transaction locks the file from its
// beginning (BEGIN IMMEDIATE), and waits for that until ctx ends.
//
// When fn returns an error, panics or calls runtime.Goexit, the transaction is rolled
// back. Transact returns fn's error unchanged; ErrConflict, with the last error, when the
// tries ran out; and ErrUnknown when the commit was not answered. After ErrUnknown it
// does not try again.
func Transact(ctx context.Context, d Dialect, db *sql.DB, o *TransactOptions, fn func(ctx context.Context, tx *sql.Tx) error) error {
	if o == nil {
		o = &TransactOptions{}
	}
	if err := d.validate(); err != nil {
		return err
	}
	if fn == nil {
		return noFunction("Transact")
	}
	if o.MaxTries < 0 {
		return fmt.Errorf("sqllock: TransactOptions.MaxTries is %d; it must not be negative", o.MaxTries)
	}
	t := transactor{d: d, isolation: o.Isolation, tries: cmp.Or(o.MaxTries, defaultTries)}
	seen := observed(o.Observe, d)
	err := t.run(ctx, db, &seen, func(ctx context.Context, tx *sql.Tx) error {
		seen.acquired(ctx)
		return fn(ctx, tx)
	})
	seen.refused(ctx, err)
	return err
}

const defaultTries = 10

type transactor struct {
	d         Dialect
	isolation sql.IsolationLevel
	tries     int
	wait      time.Duration // for the lock of SQLite's file, as RowLock.Wait
}

// run tries fn until there is no conflict.
func (t *transactor) run(ctx context.Context, db *sql.DB, seen *observation, fn func(context.Context, *sql.Tx) error) error {
	return retry(ctx, t.tries, "shorten the transaction", t.d.Conflicted, func() (err error) {
		seen.had = false
		defer func() { seen.ended(ctx, t.d, err) }()
		return t.try(ctx, db, seen, fn)
	})
}

func (t *transactor) try(ctx context.Context, db *sql.DB, seen *observation, fn func(context.Context, *sql.Tx) error) error {
	tx, end, err := t.begin(ctx, db)
	if err != nil {
		return err
	}
	defer end()
	defer func() { _ = tx.Rollback() }() // no effect after the commit
	if err := fn(ctx, tx); err != nil {
		return err
	}
	// If ctx ended during the commit, its outcome would be unknown.
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("sqllock: nothing was committed: %w", context.Cause(ctx))
	}
	seen.settling = time.Now()
	err = tx.Commit()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil:
		return fmt.Errorf("sqllock: fn ended the transaction; leave that to Transact: %w", err)
	case errors.Is(err, sql.ErrTxDone), t.d.notCommitted(err):
		return fmt.Errorf("sqllock: nothing was committed: %w", err)
	}
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}

// begin begins a transaction. The caller calls end when it is over.
func (t *transactor) begin(ctx context.Context, db *sql.DB) (tx *sql.Tx, end func(), err error) {
	if t.d == SQLite {
		return t.beginImmediate(ctx, db)
	}
	tx, err = db.BeginTx(ctx, &sql.TxOptions{Isolation: t.isolation})
	if err != nil {
		return nil, nil, fmt.Errorf("sqllock: begin a transaction: %w", err)
	}
	return tx, func() {}, nil
}

// beginImmediate begins a transaction of SQLite that locks the file at once. Otherwise it
// could no longer write after another transaction wrote.
func (t *transactor) beginImmediate(ctx context.Context, db *sql.DB) (*sql.Tx, func(), error) {
	since := time.Now()
	for failed := 1; ; failed++ {
		tx, end, err := t.tryImmediate(ctx, db, since)
		if err == nil {
			return tx, end, nil
		}
		if !isBusy(err) {
			return nil, nil, fmt.Errorf("sqllock: begin a transaction: %w", err)
		}
		if t.wait != 0 {
			return nil, nil, held(since, t.wait, err)
		}
		if ended := conflictPause.Wait(ctx, failed); ended != nil {
			return nil, nil, fmt.Errorf("sqllock: waiting for the lock of the file: %w (%w)", ended, err)
		}
	}
}

func (t *transactor) tryImmediate(ctx context.Context, db *sql.DB, since time.Time) (*sql.Tx, func(), error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, nil, err
	}
	var tx *sql.Tx
	err = withBusyTimeout(ctx, conn, t.wait, func() error {
		var err error
		if tx, err = conn.BeginTx(ctx, nil); err != nil {
			return err
		}
		// Drivers usually begin DEFERRED. The *sql.Tx does not notice that its
		// connection begins another transaction.
		if _, err = tx.ExecContext(ctx, "COMMIT"); err != nil {
			return err
		}
		if t.wait > 0 { // the driver's BEGIN may have waited already
			if err := setBusyTimeout(ctx, tx, t.wait-time.Since(since)); err != nil {
				return err
			}
		}
		_, err = tx.ExecContext(ctx, "BEGIN IMMEDIATE")
		return err
	})
	if err != nil {
		if tx != nil {
			_ = tx.Rollback() // releases the connection, even without a transaction
		}
		conn.Close()
		return nil, nil, err
	}
	return tx, func() { conn.Close() }, nil
}

// withBusyTimeout runs f with SQLite's busy timeout set to wait, and restores it.
func withBusyTimeout(ctx context.Context, c execer, wait time.Duration, f func() error) (err error) {
	if wait == 0 {
		return f()
	}
	var before int64
	if err := c.QueryRowContext(ctx, "PRAGMA busy_timeout").Scan(&before); err != nil {
		return err
	}
	defer func() {
		again := setBusyTimeout(context.WithoutCancel(ctx), c, time.Duration(before)*time.Millisecond)
		err = cmp.Or(err, again)
	}()
	if err := setBusyTimeout(ctx, c, wait); err != nil {
		return err
	}
	return f()
}

type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// setBusyTimeout sets SQLite's busy timeout; a negative one means no wait.
func setBusyTimeout(ctx context.Context, c execer, wait time.Duration) error {
	_, err := c.ExecContext(ctx, fmt.Sprintf("PRAGMA busy_timeout = %d", milliseconds(wait)))
	return err
}

// milliseconds rounds a duration up to milliseconds, at most 24 days.
func milliseconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return min(int64((d-1)/time.Millisecond)+1, 1<<31-1)
}
