// Package journal is an application's table in memory whose transactions also settle keys of
// a store. Tests use it to commit both together, and to make a commit fail in each way.
package journal

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/dibs-go/dibs/store"
)

// Journal is a store.Transactor over rows of text.
type Journal struct {
	store store.Store

	mu   sync.Mutex
	rows []string
	ends []Ending
}

// New returns an empty Journal for the keys of a store. The transactions end as ends says, in
// that order, and all later ones as Committed.
func New(s store.Store, ends ...Ending) *Journal { return &Journal{store: s, ends: ends} }

// Ending is how a transaction ends.
type Ending int

const (
	// Committed commits.
	Committed Ending = iota
	// Conflicted rolls back because of another transaction.
	Conflicted
	// Refused rolls back for another reason.
	Refused
	// Unanswered commits, and the connection is lost before the answer.
	Unanswered
	// CutOff rolls back, because the connection is lost before the commit.
	CutOff
	// Ended was ended before by the application, which committed its writes.
	Ended
	// Unbegun does not begin.
	Unbegun
)

var (
	// ErrConflict is the error that an application gets from a conflict.
	ErrConflict = errors.New("could not serialize access")

	errReset   = errors.New("connection reset")
	errRefused = errors.New("violates a constraint")
)

// transaction is a transaction of a Journal.
type transaction struct {
	journal *Journal
	end     Ending
	rows    []string
	over    bool
}

// Begin implements store.Transactor.
func (j *Journal) Begin(ctx context.Context) (store.Transaction, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	tx := &transaction{journal: j}
	if len(j.ends) > 0 {
		tx.end, j.ends = j.ends[0], j.ends[1:]
	}
	if tx.end == Unbegun {
		return nil, errReset
	}
	return tx, ctx.Err()
}

// Write adds a row in the transaction that ctx carries.
func Write(ctx context.Context, row string) {
	tx := store.TransactionFrom(ctx).(*transaction)
	tx.rows = append(tx.rows, row)
}

// Rows returns the rows that were committed.
func (j *Journal) Rows() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.rows)
}

// Commit implements store.Transaction.
func (tx *transaction) Commit(ctx context.Context, s store.Settlement) error {
	if tx.over {
		return errors.Join(store.ErrRolledBack, errors.New("the transaction has ended"))
	}
	tx.over = true
	switch tx.end {
	case Conflicted:
		return errors.Join(store.ErrRolledBack, ErrConflict)
	case Refused:
		return errors.Join(store.ErrRolledBack, errRefused)
	case CutOff:
		return errReset
	}
	j := tx.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	if tx.end == Ended {
		j.rows = append(j.rows, tx.rows...)
		return store.ErrTransactionEnded
	}
	errs := make([]error, 1)
	switch err := j.store.Settle(ctx, []store.Settlement{s}, errs); {
	case err != nil:
		return err
	case errors.Is(errs[0], store.ErrLost):
		return errs[0]
	case errs[0] != nil:
		return errors.Join(store.ErrRolledBack, errs[0])
	}
	j.rows = append(j.rows, tx.rows...)
	if tx.end == Unanswered {
		return errReset
	}
	return nil
}

// Rollback implements store.Transaction.
func (tx *transaction) Rollback() { tx.over = true }

// Conflicted implements store.Transaction. With a nil err it reports whether the transaction
// will end as Conflicted.
func (tx *transaction) Conflicted(err error) bool {
	return errors.Is(err, ErrConflict) || err == nil && tx.end == Conflicted
}
