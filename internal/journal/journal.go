// Package journal is an application's table in memory, with transactions over it
// and the keys of a store: for tests of what commits both, and of each way in which
// a commit can fail.
package journal

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/dibs-go/dibs"
)

// Journal is a dibs.Transactor over rows of text. How the next transactions end is
// in Ends: each takes the first one off.
type Journal struct {
	store dibs.Store

	mu   sync.Mutex
	rows []string
	ends []Ending
}

// New returns a Journal beside the keys of a store.
func New(s dibs.Store, ends ...Ending) *Journal { return &Journal{store: s, ends: ends} }

// Ending is how a transaction ends.
type Ending int

const (
	// Committed ends as asked for.
	Committed Ending = iota
	// Conflicted is rolled back because of another transaction.
	Conflicted
	// Refused is rolled back for another reason.
	Refused
	// Unheard is committed, and nobody hears of it.
	Unheard
	// CutOff loses the connection before the server hears of the commit: it is
	// rolled back.
	CutOff
	// Ended was ended by the application, and committed what it did.
	Ended
	// Unbegun does not even begin.
	Unbegun
)

var (
	// ErrConflict is what an application sees of a conflict.
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

// Begin implements dibs.Transactor.
func (j *Journal) Begin(ctx context.Context) (dibs.Transaction, error) {
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
	tx := dibs.TransactionFrom(ctx).(*transaction)
	tx.rows = append(tx.rows, row)
}

// Rows returns the rows that were committed.
func (j *Journal) Rows() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.rows)
}

// Commit implements dibs.Transaction.
func (tx *transaction) Commit(ctx context.Context, s dibs.Settlement) error {
	if tx.over {
		return errors.Join(dibs.ErrRolledBack, errors.New("the transaction is over"))
	}
	tx.over = true
	switch tx.end {
	case Conflicted:
		return errors.Join(dibs.ErrRolledBack, ErrConflict)
	case Refused:
		return errors.Join(dibs.ErrRolledBack, errRefused)
	case CutOff:
		return errReset
	}
	j := tx.journal
	j.mu.Lock()
	defer j.mu.Unlock()
	if tx.end == Ended {
		j.rows = append(j.rows, tx.rows...)
		return dibs.ErrTransactionEnded
	}
	errs := make([]error, 1)
	switch err := j.store.Settle(ctx, []dibs.Settlement{s}, errs); {
	case err != nil:
		return err
	case errors.Is(errs[0], dibs.ErrLost):
		return errs[0]
	case errs[0] != nil:
		return errors.Join(dibs.ErrRolledBack, errs[0])
	}
	j.rows = append(j.rows, tx.rows...)
	if tx.end == Unheard {
		return errReset
	}
	return nil
}

// Rollback implements dibs.Transaction.
func (tx *transaction) Rollback() { tx.over = true }

// Conflicted implements dibs.Transaction: a transaction sees by itself when it will
// end so.
func (tx *transaction) Conflicted(err error) bool {
	return errors.Is(err, ErrConflict) || err == nil && tx.end == Conflicted
}
