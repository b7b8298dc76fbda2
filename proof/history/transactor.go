package history

import (
	"context"
	"errors"

	"github.com/dibs-go/dibs/store"
)

// RecordTransactor returns a store.Transactor that writes its commits to the history, as
// settlements with the name "transaction". A function that runs in one of its transactions finds
// the store's own transaction with Inside.
func RecordTransactor(t store.Transactor, w *Writer, failed func(error)) store.Transactor {
	if failed == nil {
		failed = func(error) {}
	}
	return &transactor{t, w, failed}
}

// Inside returns ctx with the store's own transaction in place of the recorded one.
func Inside(ctx context.Context) context.Context {
	if tx, ok := store.TransactionFrom(ctx).(*transaction); ok {
		return store.WithTransaction(ctx, tx.Transaction)
	}
	return ctx
}

type transactor struct {
	store.Transactor
	w      *Writer
	failed func(error)
}

// Begin implements store.Transactor.
func (t *transactor) Begin(ctx context.Context) (store.Transaction, error) {
	tx, err := t.Transactor.Begin(ctx)
	if err != nil {
		t.failed(err)
		return nil, err
	}
	return &transaction{tx, t}, nil
}

// transaction is a transaction whose commit is recorded.
type transaction struct {
	store.Transaction
	t *transactor
}

// Commit implements store.Transaction.
func (tx *transaction) Commit(ctx context.Context, s store.Settlement) error {
	events := []Event{OfSettlement(&s)}
	events[0].Name = "transaction"
	if err := tx.t.w.Call(events); err != nil {
		return errors.Join(store.ErrRolledBack, err)
	}
	err := tx.Transaction.Commit(ctx, s)
	events[0].Ended(err)
	if err != nil {
		tx.t.failed(err)
	}
	_ = tx.t.w.Return(events) // an error means that the runner has ended
	return err
}
