package pgstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/remote"
)

// SQLTransactions is Transactions for database/sql, with any driver whose errors have an
// SQLState method (pgx and lib/pq do). The function that runs in a transaction gets it with SQLTx.
// A transaction costs two round trips more than without dibs: the mark and the settlement.
func (s *Store) SQLTransactions(db *sql.DB, o *sql.TxOptions) store.Transactor {
	t := &sqlTransactor{s: s, db: db}
	if o != nil {
		t.options = *o
	}
	return t
}

// SQLTx returns the transaction that a function with this context runs in, if SQLTransactions
// began it. dibs commits it when the function has returned, and rolls it back if that returned an
// error. If the run calls its Commit or Rollback it fails with ErrTransactionEnded: its effect may
// be committed then, and its answer is not kept.
func SQLTx(ctx context.Context) (*sql.Tx, bool) {
	t, ok := store.TransactionFrom(ctx).(*sqlTransaction)
	if !ok {
		return nil, false
	}
	return t.tx, true
}

// sqlTransactor begins transactions of a sql.DB.
type sqlTransactor struct {
	s       *Store
	db      *sql.DB
	options sql.TxOptions
	same    sameness
}

// Begin implements store.Transactor.
func (b *sqlTransactor) Begin(ctx context.Context) (store.Transaction, error) {
	switch {
	case b.db == nil:
		return nil, errors.New("pgstore: SQLTransactions was given no DB")
	case b.options.ReadOnly:
		return nil, fmt.Errorf("%w: TxOptions.ReadOnly is set, but the answer is written", ErrReadOnly)
	}
	if err := b.s.server.Usable(ctx); err != nil {
		return nil, err
	}
	err := b.same.check(ctx, b.s, func(ctx context.Context, sql string) (yes bool, err error) {
		err = b.db.QueryRowContext(ctx, sql).Scan(&yes)
		return yes, err
	})
	if err != nil {
		return nil, err
	}
	t := &sqlTransaction{s: b.s, ended: ctx.Err}
	if t.tx, err = b.db.BeginTx(ctx, &b.options); err != nil {
		return nil, explain(err)
	}
	if _, err := t.tx.ExecContext(ctx, markSQL); err != nil {
		t.Rollback()
		return nil, explain(err)
	}
	return t, nil
}

// sqlTransaction is a transaction of database/sql, which rolls it back when the context of Begin
// ends.
type sqlTransaction struct {
	s  *Store
	tx *sql.Tx

	ended func() error // why database/sql has rolled it back, if it has
	over  atomic.Bool
}

// Commit implements store.Transaction.
func (t *sqlTransaction) Commit(ctx context.Context, x store.Settlement) error {
	if t.over.Swap(true) {
		return fmt.Errorf("%w: it is over", store.ErrRolledBack)
	}
	settle, err := t.s.settleIn(&x, true)
	if err != nil {
		_ = t.tx.Rollback()
		return fmt.Errorf("%w: %w", store.ErrRolledBack, err)
	}
	var later bool
	switch err := t.tx.QueryRowContext(ctx, t.s.sql.settleIn.sql, settle...).Scan(&later); {
	case errors.Is(err, sql.ErrTxDone) && t.ended() != nil:
		return fmt.Errorf("%w: %w", store.ErrRolledBack, t.ended())
	case errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("%w: %w", ErrTransactionEnded, err)
	case err != nil:
		// COMMIT was not sent.
		_ = t.tx.Rollback()
		return settleFailed(err, true)
	}
	err = t.tx.Commit()
	switch {
	case err == nil:
		if later {
			remote.CatchUp(ctx, t.s.core, x.Key)
		}
		return nil
	case errors.Is(err, sql.ErrTxDone):
		// The context of Begin ended, and the transaction with it: COMMIT was not sent.
		return fmt.Errorf("%w: %w", store.ErrRolledBack, cmp.Or(t.ended(), err))
	}
	// An error with a state that is not about the connection says that the server did not commit.
	state := sqlState(err)
	return settleFailed(err, state != "" && state[:2] != "57" && state[:2] != "08")
}

// Rollback implements store.Transaction.
func (t *sqlTransaction) Rollback() {
	if !t.over.Swap(true) {
		_ = t.tx.Rollback()
	}
}

// Conflicted implements store.Transaction.
func (t *sqlTransaction) Conflicted(err error) bool { return conflicts(err) }
