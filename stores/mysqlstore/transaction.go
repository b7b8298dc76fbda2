package mysqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/remote"
)

// Transactions begins transactions on connections of the application's pool, for dibs.OnceIn,
// OnceTx and idempotency.Options.Transactor. The function that runs in a transaction gets it with
// Tx. The pool's driver has to be go-sql-driver/mysql, as it is or wrapped, and its server the
// store's. The database and the settings of its connections do not matter. Its user needs some
// rights; see the README. Options may be nil.
//
// A transaction takes four round trips more than without dibs: one for the mark, and three for
// the settlement.
//
// With MariaDB's innodb_snapshot_isolation, at REPEATABLE READ and SERIALIZABLE, a renewal of the
// lease conflicts with the transaction. Leases are renewed after a third of their TTL, so let the
// TTL be well above three times the time of a run.
//
// Begin returns ErrOtherDatabase if the pool is not on the store's server, ErrReadOnly if the
// options ask for read-only transactions, and the errors of the pool.
func (s *Store) Transactions(db *sql.DB, o *sql.TxOptions) store.Transactor {
	t := &transactor{s: s, db: db}
	if o != nil {
		t.options = *o
	}
	return t
}

// Tx returns the transaction that a function with this context runs in, if Transactions began it.
// dibs commits it when the function has returned, and rolls it back if that returned an error. Use
// a savepoint (SAVEPOINT, ROLLBACK TO SAVEPOINT) for statements that may fail.
//
// If the run ends the transaction it fails with ErrTransactionEnded: its effect may be committed
// then, and its answer is not kept. Commit and Rollback end it, and so do COMMIT, ROLLBACK, START
// TRANSACTION, and statements that commit, such as ALTER TABLE. Return the error of a deadlock
// (1213) at once, because the server has rolled back then, and commits each further statement by
// itself.
func Tx(ctx context.Context) (*sql.Tx, bool) {
	t, ok := store.TransactionFrom(ctx).(*transaction)
	if !ok {
		return nil, false
	}
	return t.tx, true
}

// OnceTx runs fn once under the key, in a transaction of t (see Store.Transactions). It commits
// the effect of fn together with its result. Later calls under the key return that result, in any
// process, until the retention is over. See dibs.OnceIn for the errors, and for when fn is called
// again, and Tx for what fn must not do. The context of fn carries the transaction too.
func OnceTx[T any](ctx context.Context, c *dibs.Client, t store.Transactor, key string, o *dibs.OnceOptions, fn func(context.Context, *sql.Tx) (T, error)) (T, error) {
	return dibs.OnceIn(ctx, c, t, key, o, func(ctx context.Context) (result T, err error) {
		tx, ok := Tx(ctx)
		if !ok {
			return result, errors.New("mysqlstore: OnceTx wants a Transactor that Store.Transactions made")
		}
		return fn(ctx, tx)
	})
}

// transactor begins transactions of a pool.
type transactor struct {
	s       *Store
	db      *sql.DB
	options sql.TxOptions

	mu    sync.Mutex
	known bool // the pool is on the store's server
}

// meet finds out, once, whether the application's connections go to the store's server.
func (b *transactor) meet(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.known {
		return nil
	}
	// The store takes a named lock and looks for it through the application's pool. If it is
	// visible, both are on the same server: replicas and nodes of a cluster have their own locks.
	name := "dibs " + newMark()
	err := use(ctx, b.s.front, func(c *sql.Conn) error {
		if err := b.s.script().raw("DO GET_LOCK('"+name+"',0)").done().run(ctx, c); err != nil {
			return err
		}
		err := b.db.QueryRowContext(ctx, "SELECT IS_USED_LOCK('"+name+"') IS NOT NULL").Scan(&b.known)
		return cmp.Or(err, b.s.script().raw("DO RELEASE_LOCK('"+name+"')").done().run(ctx, c))
	})
	if err == nil && !b.known {
		return ErrOtherDatabase
	}
	return explain(err)
}

// maxStale bounds the connections that a call tries before one is not closed.
const maxStale = 3

// Begin implements store.Transactor.
func (b *transactor) Begin(ctx context.Context) (store.Transaction, error) {
	switch {
	case b.db == nil:
		return nil, errors.New("mysqlstore: Transactions was given no DB")
	case b.options.ReadOnly:
		return nil, fmt.Errorf("%w: TxOptions.ReadOnly is set, but the answer is written", ErrReadOnly)
	}
	if err := b.s.server.Usable(ctx); err != nil {
		return nil, err
	}
	if err := b.meet(ctx); err != nil {
		return nil, err
	}
	for n := 1; ; n++ {
		t := &transaction{s: b.s, mark: newMark(), ended: ctx.Err}
		err := t.begin(ctx, b.db, &b.options)
		if err == nil {
			return t, nil
		}
		if n == maxStale || !errors.Is(err, driver.ErrBadConn) {
			return nil, explain(err)
		}
	}
}

// transaction is a transaction of database/sql, which rolls it back when the context of Begin ends.
type transaction struct {
	s    *Store
	conn *sql.Conn
	tx   *sql.Tx
	mark string // a savepoint, which ends with the transaction

	ended func() error // why database/sql has rolled it back, if it has
	over  atomic.Bool
}

// begin begins and marks it.
func (t *transaction) begin(ctx context.Context, db *sql.DB, o *sql.TxOptions) (err error) {
	if t.conn, err = db.Conn(ctx); err != nil {
		return err
	}
	if t.tx, err = t.conn.BeginTx(ctx, o); err == nil {
		if _, err = t.tx.ExecContext(ctx, "SAVEPOINT "+t.mark); err == nil {
			return nil
		}
		_ = t.tx.Rollback()
	}
	_ = t.conn.Close()
	return err
}

// Commit implements store.Transaction.
func (t *transaction) Commit(ctx context.Context, x store.Settlement) error {
	if t.over.Swap(true) {
		return fmt.Errorf("%w: it is over", store.ErrRolledBack)
	}
	settle, err := t.s.settleIn(&x)
	if ended := t.ended(); ended != nil {
		err = ended // database/sql is about to roll back
	}
	if err != nil {
		t.release()
		return fmt.Errorf("%w: %w", store.ErrRolledBack, err)
	}
	later, err := t.settle(ctx, settle)
	if err == nil {
		err = t.commit(ctx)
	}
	switch {
	case err == nil, errors.Is(err, store.ErrRolledBack), errors.Is(err, store.ErrLost), errors.Is(err, ErrTransactionEnded):
		t.release()
	default:
		t.cut()
	}
	if err == nil && later {
		remote.CatchUp(ctx, t.s.core, x.Key)
	}
	return err
}

// settle settles. later says that CatchUp is needed after the commit.
func (t *transaction) settle(ctx context.Context, c *settlement) (later bool, err error) {
	// This fails if it is another transaction.
	if _, err := t.tx.ExecContext(ctx, "RELEASE SAVEPOINT "+t.mark); err != nil {
		return false, t.failed(err, true)
	}
	for i, statement := range []string{c.one, c.many} {
		done, err := t.tx.ExecContext(ctx, statement)
		if err != nil {
			return false, t.failed(err, true)
		}
		if n, err := done.RowsAffected(); err != nil {
			return false, t.failed(err, true)
		} else if n == 0 {
			continue
		}
		busy, err := done.LastInsertId()
		if c.record != "" {
			if _, err := t.tx.ExecContext(ctx, c.record); err != nil {
				return false, t.failed(err, true)
			}
		}
		return i > 0 || busy != 0 || err != nil, nil
	}
	return false, store.ErrLost
}

// commit commits. It stops waiting when ctx ends, but the commit continues.
func (t *transaction) commit(ctx context.Context) error {
	committed := make(chan error, 1)
	go func() { committed <- t.tx.Commit() }() // no context ends it
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

// failed returns the error of a settlement, or of the COMMIT after it, with its meaning. before
// says that COMMIT was not sent, or did nothing.
func (t *transaction) failed(err error, before bool) error {
	switch ended := t.ended(); {
	case errors.Is(err, sql.ErrTxDone) && ended != nil:
		return fmt.Errorf("%w: %w", store.ErrRolledBack, ended)
	case errors.Is(err, sql.ErrTxDone), code(err) == codeNoSavepoint:
		return fmt.Errorf("%w: %w", ErrTransactionEnded, err)
	case errors.Is(err, driver.ErrBadConn):
		// The driver has sent nothing.
		return fmt.Errorf("%w: %w (%w): the connection was lost, or the run has left rows open: close them", store.ErrRolledBack, ErrUnreachable, err)
	case !before:
		return explain(err)
	}
	return fmt.Errorf("%w: %w", store.ErrRolledBack, explain(err))
}

// Rollback implements store.Transaction.
func (t *transaction) Rollback() {
	if !t.over.Swap(true) {
		t.release()
	}
}

// release rolls back and gives the connection back.
func (t *transaction) release() {
	bounded(func() {
		_ = t.tx.Rollback()
		_ = t.conn.Close()
	})
}

// cut closes the connection, because a transaction may be open on it.
func (t *transaction) cut() {
	bounded(func() {
		_ = t.tx.Rollback()
		_ = t.conn.Raw(func(any) error { return driver.ErrBadConn })
		_ = t.conn.Close()
	})
}

// bounded waits for f up to endLimit. database/sql ends transactions without a context, which
// takes long on a connection that was cut.
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

// endLimit bounds the wait for the end of a transaction.
const endLimit = 4 * time.Second

// Conflicted implements store.Transaction.
func (t *transaction) Conflicted(err error) bool {
	return code(err) != 0 && undone(err) || code(err) == 1205
}
