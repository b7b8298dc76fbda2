package sqllock

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// LockTx waits for the lock and takes it for the transaction, of any driver for
// PostgreSQL: it is given up when that commits or rolls back, and by nothing else. It
// works behind every pooler. nil options mean the defaults.
//
// The transaction has to be at read committed, which is PostgreSQL's default. At
// repeatable read or serializable it would not see what the holder before it committed,
// so LockTx takes nothing there and returns ErrIsolation, and the transaction goes on.
//
// A transaction that waits holds up CREATE INDEX CONCURRENTLY, as every transaction
// that is open does: let the Wait be short where indexes are made, or use Advisory.
//
// It returns dibs.ErrHeld when LockOptions.Wait is over, and ErrDeadlock. The
// transaction goes on then if there is a Wait, and the settings that it has are as
// they were: what that costs are a savepoint and four statements, and only when the
// lock is held. Without a Wait it is aborted by such errors. A lock that is taken
// after a savepoint is given up when the transaction rolls back to that.
func LockTx(ctx context.Context, tx Tx, key AdvisoryKey, o *LockOptions) error {
	return lockTx(ctx, tx, key, o, false)
}

// TryLockTx is LockTx for those who would rather not wait: it returns dibs.ErrHeld
// when others have the lock, and the transaction goes on.
func TryLockTx(ctx context.Context, tx Tx, key AdvisoryKey, o *LockOptions) error {
	return lockTx(ctx, tx, key, o, true)
}

// LockTxPgx is LockTx for a transaction of pgx.
func LockTxPgx(ctx context.Context, tx pgx.Tx, key AdvisoryKey, o *LockOptions) error {
	return lockIn(ctx, pgxStatements{tx}, key, o, false)
}

// TryLockTxPgx is TryLockTx for a transaction of pgx.
func TryLockTxPgx(ctx context.Context, tx pgx.Tx, key AdvisoryKey, o *LockOptions) error {
	return lockIn(ctx, pgxStatements{tx}, key, o, true)
}

func lockTx(ctx context.Context, tx Tx, key AdvisoryKey, o *LockOptions, try bool) error {
	s, err := statementsOf(tx)
	if err != nil {
		return err
	}
	return lockIn(ctx, s, key, o, try)
}

func lockIn(ctx context.Context, s statements, key AdvisoryKey, o *LockOptions, try bool) error {
	t, err := o.begin(try)
	if err != nil {
		return err
	}
	args, params := key.args()
	if t.try || t.wait > 0 {
		var got sql.NullBool
		query := "SELECT " + ifReadCommitted(function("pg_try_advisory_xact_lock", t.shared)+"("+args+")")
		switch err := s.row(ctx, query, params, &got); {
		case err != nil:
			return explainTx(ctx, key, &t, err)
		case !got.Valid:
			return isolationError(key)
		case got.Bool:
			return nil
		case t.try:
			return t.held(advisoryName(key))
		}
		return waitIn(ctx, s, key, &t)
	}
	var void sql.NullString
	query := "SELECT " + ifReadCommitted(function("pg_advisory_xact_lock", t.shared)+"("+args+")::text")
	err = explainTx(ctx, key, &t, s.row(ctx, query, params, &void))
	if err == nil && !void.Valid {
		err = isolationError(key)
	}
	return err
}

// readCommitted is SQL that is true in a transaction of PostgreSQL whose next statement
// sees what was committed before it.
const readCommitted = "current_setting('transaction_isolation') IN ('read committed', 'read uncommitted')"

// ifReadCommitted returns SQL that is the expression at read committed. Otherwise it
// is NULL, and the expression is not evaluated.
func ifReadCommitted(expression string) string {
	return "CASE WHEN " + readCommitted + " THEN " + expression + " END"
}

func isolationError(key AdvisoryKey) error {
	return fmt.Errorf("%w, or take the lock %s with Advisory before the transaction begins", ErrIsolation, advisoryName(key))
}

// waitIn waits for a limited time. To give up is an error, from which a savepoint saves
// the transaction.
func waitIn(ctx context.Context, s statements, key AdvisoryKey, t *taking) error {
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

// explainTx gives an error of a transaction its meaning.
func explainTx(ctx context.Context, key AdvisoryKey, t *taking, err error) error {
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
