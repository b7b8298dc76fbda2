package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
)

// Transactions returns what begins transactions by connections of the application's
// pool, for dibs.OnceIn, OnceTx and idempotency.Options.Transactor. Functions that
// run in one find it with Tx. The pool's driver has to be go-sql-driver/mysql, as it
// is or wrapped, and its server the store's; which database its connections are in,
// and what else they have set, does not matter. Its user needs some rights, see the
// README. Options may be nil.
//
// A transaction takes two round trips more than without dibs, to be marked and to be
// settled. The settlement commits by itself, so that nobody waits for a lock of ours
// while this process is slow: on MariaDB, and on MySQL where the connections allow
// several statements in one message (multiStatements=true). On MySQL they mostly do
// not, and then it takes four more.
//
// With MariaDB's innodb_snapshot_isolation, at the levels REPEATABLE READ and
// SERIALIZABLE, a lease that is renewed while the transaction is open, which is after
// a third of its TTL, makes it fail with a conflict: let the TTL be well above three
// times what a run takes.
//
// Begin returns an ErrOtherDatabase, once, when the pool is not one of the store's
// server, ErrReadOnly when the options ask for read-only transactions, and what the
// pool returns.
func (s *Store) Transactions(db *sql.DB, o *sql.TxOptions) dibs.Transactor {
	t := &transactor{s: s, db: db}
	if o != nil {
		t.options = *o
	}
	return t
}

// Tx returns the transaction in which the function that was given ctx runs, of those
// that Transactions makes. It is committed when the function has returned, and rolled
// back if that returned an error. Make a savepoint (SAVEPOINT, ROLLBACK TO SAVEPOINT)
// for what may fail.
//
// A run that ends it by itself fails, with ErrEnded: what it did may be committed
// then, and its answer is not kept. So it is with Commit and Rollback, with COMMIT,
// ROLLBACK and START TRANSACTION, and with statements that commit what was before
// them, as all do that change a table's definition. Return the error of a deadlock
// (1213), and do nothing after it: the server has rolled back then, and commits each
// further statement by itself.
func Tx(ctx context.Context) (*sql.Tx, bool) {
	t, ok := dibs.TransactionFrom(ctx).(*transaction)
	if !ok {
		return nil, false
	}
	return t.tx, true
}

// transactor begins transactions of a pool.
type transactor struct {
	s       *Store
	db      *sql.DB
	options sql.TxOptions
	pool    acquaintance
}

// fresh is how often a connection is tried that turns out to be closed.
const fresh = 3

// Begin implements dibs.Transactor.
func (b *transactor) Begin(ctx context.Context) (dibs.Transaction, error) {
	switch {
	case b.db == nil:
		return nil, errors.New("mysqlstore: Transactions was given no DB")
	case b.options.ReadOnly:
		return nil, fmt.Errorf("%w: TxOptions.ReadOnly is set, and what is done once is written down", ErrReadOnly)
	}
	if err := b.s.usable(ctx); err != nil {
		return nil, err
	}
	manner, err := b.pool.meet(ctx, b.s, b.db)
	if err != nil {
		return nil, err
	}
	for n := 1; ; n++ {
		t := &transaction{s: b.s, manner: manner, mark: newMark(), ended: ctx.Err}
		err := t.begin(ctx, b.db, &b.options)
		if err == nil {
			return t, nil
		}
		if n == fresh || !errors.Is(err, driver.ErrBadConn) {
			return nil, explain(err)
		}
	}
}

// transaction is one of database/sql's, which also rolls it back when the context
// ends that it was begun with.
type transaction struct {
	s      *Store
	conn   *sql.Conn
	tx     *sql.Tx
	manner manner
	mark   string

	ended func() error // why database/sql has rolled it back, if it has
	over  atomic.Bool
}

// begin begins and marks it.
func (t *transaction) begin(ctx context.Context, db *sql.DB, o *sql.TxOptions) (err error) {
	if t.conn, err = db.Conn(ctx); err != nil {
		return err
	}
	if t.tx, err = t.conn.BeginTx(ctx, o); err == nil {
		if _, err = t.tx.ExecContext(ctx, markSQL(t.mark)); err == nil {
			return nil
		}
		_ = t.tx.Rollback()
	}
	_ = t.conn.Close()
	return err
}

// Commit implements dibs.Transaction.
func (t *transaction) Commit(ctx context.Context, x dibs.Settlement) error {
	if t.over.Swap(true) {
		return fmt.Errorf("%w: it is over", dibs.ErrRolledBack)
	}
	settle, err := t.s.settleIn(&x, t.mark)
	if ended := t.ended(); ended != nil {
		err = ended // database/sql is about to roll back
	}
	if err != nil {
		t.release()
		return fmt.Errorf("%w: %w", dibs.ErrRolledBack, err)
	}
	var later bool
	if t.manner == apart {
		later, err = t.commitApart(ctx, settle)
	} else {
		later, err = t.commitWhole(ctx, settle)
	}
	switch {
	case err == nil, errors.Is(err, dibs.ErrRolledBack), errors.Is(err, dibs.ErrLost), errors.Is(err, ErrEnded):
		t.release()
	default:
		t.cut()
	}
	if err == nil && later {
		t.s.catchUp(ctx, x.Key)
	}
	return err
}

// commitWhole settles and commits with one message.
func (t *transaction) commitWhole(ctx context.Context, c *settlement) (later bool, err error) {
	err = t.tx.QueryRowContext(ctx, c.whole(t.manner)).Scan(&later)
	switch {
	case code(err) == codeNotHeld:
		// By the key's row. If it has more permits than one it has others, and they
		// are all that is left to do.
		return true, t.commitMany(ctx, c)
	case err != nil:
		return false, t.failed(err, surelyBefore[code(err)])
	}
	// It is committed; this is for database/sql.
	bounded(func() {
		if t.tx.Commit() != nil {
			_ = t.tx.Rollback()
		}
	})
	return later, nil
}

// commitApart does the same with one statement after the other.
func (t *transaction) commitApart(ctx context.Context, c *settlement) (later bool, err error) {
	if _, err := t.tx.ExecContext(ctx, c.release); err != nil {
		return false, t.failed(err, true)
	}
	done, err := t.tx.ExecContext(ctx, c.settle)
	if err != nil {
		return false, t.failed(err, true)
	}
	if n, err := done.RowsAffected(); err != nil || n == 0 {
		return true, t.commitMany(ctx, c)
	}
	left, err := done.LastInsertId()
	return left != 0 || err != nil, t.finish(ctx, c)
}

// commitMany is for keys with more than one permit. Those who do not hold the key find
// that out here too.
func (t *transaction) commitMany(ctx context.Context, c *settlement) error {
	done, err := t.tx.ExecContext(ctx, c.settleMany)
	if err != nil {
		return t.failed(err, true)
	}
	switch n, err := done.RowsAffected(); {
	case err != nil:
		return t.failed(err, true)
	case n == 0:
		return dibs.ErrLost
	}
	return t.finish(ctx, c)
}

// finish writes the record and commits.
func (t *transaction) finish(ctx context.Context, c *settlement) error {
	if c.record != "" {
		if _, err := t.tx.ExecContext(ctx, c.record); err != nil {
			return t.failed(err, true)
		}
	}
	committed := make(chan error, 1)
	go func() { committed <- t.tx.Commit() }() // which no context ends
	select {
	case err := <-committed:
		if err != nil {
			return t.failed(err, undone(err) && code(err) != 0)
		}
		return nil
	case <-ctx.Done():
		return explain(context.Cause(ctx))
	}
}

// failed gives the error of a settlement, or of the COMMIT behind it, its meaning.
// before says that COMMIT was not reached, for sure.
func (t *transaction) failed(err error, before bool) error {
	switch ended := t.ended(); {
	case errors.Is(err, sql.ErrTxDone) && ended != nil:
		return fmt.Errorf("%w: %w", dibs.ErrRolledBack, ended)
	case errors.Is(err, sql.ErrTxDone), code(err) == codeNoSavepoint:
		return fmt.Errorf("%w: %w", ErrEnded, err)
	case errors.Is(err, driver.ErrBadConn):
		// The driver's word for that it has sent nothing.
		return fmt.Errorf("%w: %w (%w): the connection was lost, or the run has left rows open: close them", dibs.ErrRolledBack, ErrUnreachable, err)
	case !before:
		return explain(err)
	}
	return fmt.Errorf("%w: %w", dibs.ErrRolledBack, explain(err))
}

// Rollback implements dibs.Transaction.
func (t *transaction) Rollback() {
	if !t.over.Swap(true) {
		t.release()
	}
}

// release gives the connection back, without a transaction on it.
func (t *transaction) release() {
	bounded(func() {
		_ = t.tx.Rollback()
		_ = t.conn.Close()
	})
}

// cut closes the connection: nobody knows whether there is a transaction on it.
func (t *transaction) cut() {
	bounded(func() {
		_ = t.tx.Rollback()
		_ = t.conn.Raw(func(any) error { return driver.ErrBadConn })
		_ = t.conn.Close()
	})
}

// bounded waits for f, but not for long: database/sql ends transactions without a
// context, and on a connection that was cut that takes as long as the system tries.
func bounded(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	limit := time.NewTimer(endLimit)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
	}
}

// endLimit is how long the end of a transaction is waited for.
const endLimit = 4 * time.Second

// Conflicted implements dibs.Transaction.
func (t *transaction) Conflicted(err error) bool { return conflicts(err) }
