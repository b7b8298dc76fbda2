package dibs_test

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/dibs-go/dibs"
)

// journal is a table of the application beside the keys of a store, with
// transactions over both.
type journal struct {
	store dibs.Store

	mu   sync.Mutex
	rows []string

	// How the next transactions end: each takes the first one off.
	ends []ending
}

// ending is how a transaction ends.
type ending int

const (
	committed  ending = iota
	conflicted        // rolled back because of another one
	refused           // rolled back for another reason
	unheard           // committed, and nobody hears of it
	cutOff            // the connection is lost before the server hears of the commit: rolled back
)

var (
	errConflict = errors.New("could not serialize access")
	errReset    = errors.New("connection reset")
)

// booking is a transaction of a journal.
type booking struct {
	*journal
	end  ending
	rows []string
	over bool
}

func (l *journal) Begin(ctx context.Context) (dibs.Transaction, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := &booking{journal: l}
	if len(l.ends) > 0 {
		b.end, l.ends = l.ends[0], l.ends[1:]
	}
	return b, ctx.Err()
}

// write adds a row in the transaction that ctx carries.
func (l *journal) write(ctx context.Context, row string) {
	b := dibs.TransactionFrom(ctx).(*booking)
	b.rows = append(b.rows, row)
}

// read returns the rows that were committed.
func (l *journal) read() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.rows)
}

func (b *booking) Commit(ctx context.Context, s dibs.Settlement) error {
	if b.over {
		return errors.Join(dibs.ErrRolledBack, errors.New("the transaction is over"))
	}
	b.over = true
	switch b.end {
	case conflicted:
		return errors.Join(dibs.ErrRolledBack, errConflict)
	case refused:
		return errors.Join(dibs.ErrRolledBack, errors.New("violates a constraint"))
	case cutOff:
		return errReset
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	errs := make([]error, 1)
	if err := b.store.Settle(ctx, []dibs.Settlement{s}, errs); err != nil || errs[0] != nil {
		return errors.Join(err, errs[0])
	}
	b.journal.rows = append(b.journal.rows, b.rows...)
	if b.end == unheard {
		return errReset
	}
	return nil
}

func (b *booking) Rollback() { b.over = true }

func (b *booking) Conflicted(err error) bool { return errors.Is(err, errConflict) }
