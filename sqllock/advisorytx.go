package sqllock

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/internal/product"
)

// LockTxOptions says how LockTx takes a lock. nil and the zero value mean: exclusively, and wait
// until the context ends.
type LockTxOptions struct {
	// Shared lets other holders in that take the lock shared, too. Default: false.
	Shared bool
	// Wait is the longest wait; then the error is dibs.ErrHeld. 0: until the context ends.
	// TryLockTx ignores it.
	Wait time.Duration
	// Observe is called when the lock was taken or refused. The end is not seen (Event.InTx).
	// Default: none.
	Observe Observer
}

// LockTx waits for the lock and takes it for a transaction of PostgreSQL. The lock lasts
// until the transaction commits or rolls back. It works behind every pooler. nil options
// mean the defaults.
//
// The transaction must be at read committed, PostgreSQL's default. At repeatable read or
// serializable it would not see what the last holder committed. There, LockTx takes no
// lock and returns ErrIsolation, and the transaction can go on. So it does with ErrLocal on
// CockroachDB, whose advisory locks do nothing.
//
// A waiting transaction blocks CREATE INDEX CONCURRENTLY, as every open transaction does.
// Use a short Wait, or Advisory.
//
// It returns dibs.ErrHeld when LockTxOptions.Wait is over, and ErrDeadlock. With a Wait,
// the transaction can go on after these errors, with its settings unchanged. This costs a
// savepoint and four statements if the lock is held. Without a Wait, these errors abort
// the transaction. A rollback to a savepoint releases the locks taken after it.
func LockTx(ctx context.Context, tx Tx, key AdvisoryKey, o *LockTxOptions) error {
	return lockTx(ctx, tx, key, o, false)
}

// TryLockTx is LockTx without the wait: it returns dibs.ErrHeld when the lock is held,
// and the transaction can go on.
func TryLockTx(ctx context.Context, tx Tx, key AdvisoryKey, o *LockTxOptions) error {
	return lockTx(ctx, tx, key, o, true)
}

func lockTx(ctx context.Context, tx Tx, key AdvisoryKey, o *LockTxOptions, try bool) (err error) {
	s, err := statementsOf(PostgreSQL, tx)
	if err != nil {
		return err
	}
	if o == nil {
		o = &LockTxOptions{}
	}
	t, err := begin("LockTxOptions", o.Shared, o.Wait, try)
	if err != nil {
		return err
	}
	seen := observed(o.Observe, advisoryName(key))
	defer func() { seen.inTx(ctx, err) }()
	args, params := key.args()
	if t.try || t.wait > 0 {
		var got sql.NullBool
		query := "SELECT " + ifExclusive(function("pg_try_advisory_xact_lock", t.shared)+"("+args+")")
		switch err := s.row(ctx, query, params, &got); {
		case err != nil:
			return explainTx(ctx, key, &t, err)
		case !got.Valid:
			return refuseTx(ctx, s, key, &t)
		case got.Bool:
			return nil
		case t.try:
			return t.held(advisoryName(key))
		}
		return waitIn(ctx, s, key, &t)
	}
	var void sql.NullString
	query := "SELECT " + ifExclusive(function("pg_advisory_xact_lock", t.shared)+"("+args+")::text")
	err = explainTx(ctx, key, &t, s.row(ctx, query, params, &void))
	if err == nil && !void.Valid {
		err = refuseTx(ctx, s, key, &t)
	}
	return err
}

// readCommitted is an SQL condition: each statement of the transaction sees what was
// committed before the statement.
const readCommitted = "current_setting('transaction_isolation') IN ('read committed', 'read uncommitted')"

// ifExclusive evaluates the expression at read committed only, and only if advisory locks exclude
// somebody; otherwise the result is NULL. CockroachDB is the one product on which they do nothing and
// return no error.
func ifExclusive(expression string) string {
	return "CASE WHEN " + readCommitted + " AND version() NOT LIKE '%CockroachDB%' THEN " + expression + " END"
}

// refuseTx returns why no lock was taken.
func refuseTx(ctx context.Context, s statements, key AdvisoryKey, t *request) error {
	var version string
	if err := s.row(ctx, "SELECT version()", nil, &version); err != nil {
		return explainTx(ctx, key, t, err)
	}
	if err := localError(product.PostgreSQL.Meet(map[string]string{"version()": version})); err != nil {
		return err
	}
	return fmt.Errorf("%w, or take the lock %s with Advisory before the transaction begins", ErrIsolation, advisoryName(key))
}

// waitIn waits for a limited time, after a savepoint, because the timeout is an error
// that aborts the transaction.
func waitIn(ctx context.Context, s statements, key AdvisoryKey, t *request) error {
	limit, more := t.left(t.wait)
	if !more {
		return t.held(advisoryName(key))
	}
	if _, _, err := s.exec(ctx, "SAVEPOINT dibs_advisory"); err != nil {
		return explainTx(ctx, key, t, err)
	}
	args, params := key.args()
	n := len(params) + 1
	query := fmt.Sprintf("SELECT was, CASE WHEN set_config('lock_timeout', $%d, true) IS NOT NULL THEN ", n) +
		function("pg_advisory_xact_lock", t.shared) + "(" + args + ")::text END FROM (SELECT current_setting('lock_timeout') AS was) now"
	var was, void string
	if err := s.row(ctx, query, append(params, lockTimeout(limit)), &was, &void); err != nil {
		if ctx.Err() == nil {
			for _, back := range []string{"ROLLBACK TO SAVEPOINT dibs_advisory", "RELEASE SAVEPOINT dibs_advisory"} {
				if _, _, err := s.exec(ctx, back); err != nil {
					return explainTx(ctx, key, t, err)
				}
			}
		}
		return explainTx(ctx, key, t, err)
	}
	var now string
	if err := s.row(ctx, "SELECT set_config('lock_timeout', $1, true)", []any{was}, &now); err != nil {
		return explainTx(ctx, key, t, err)
	}
	_, _, err := s.exec(ctx, "RELEASE SAVEPOINT dibs_advisory")
	return explainTx(ctx, key, t, err)
}

func explainTx(ctx context.Context, key AdvisoryKey, t *request, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return t.ended(ctx, advisoryName(key))
	case sqlState(err) == "55P03": // lock_timeout
		return t.held(advisoryName(key))
	case sqlState(err) == "40P01":
		return deadlock(advisoryName(key), err)
	}
	return fmt.Errorf("%w: %s: %w", ErrServer, advisoryName(key), err)
}
