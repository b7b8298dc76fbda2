package dibs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/store"
)

// CompleteIn is Complete in a transaction, which it commits: the transaction's writes and
// the record are both committed, or neither is. With a nil tx it is Complete.
//
// It returns ErrLost if the lease was lost, and an error that wraps ErrRolledBack if the
// transaction was rolled back; in both cases nothing was done. It returns an error that
// wraps ErrTransactionEnded if the transaction had ended before. It returns ErrStore if the
// outcome is unknown and the store did not answer before ctx ended: the next claim of the
// key finds it out. If Transaction.Commit itself returned ErrRolledBack, or ctx had ended
// before, the lease is still held, and the caller may begin another transaction.
func (l *Lease) CompleteIn(ctx context.Context, tx Transaction, data []byte, retention time.Duration) error {
	if tx == nil {
		return l.Complete(ctx, data, retention)
	}
	s, err := l.keep(data, retention)
	if err != nil {
		tx.Rollback()
		return fmt.Errorf("%w: %w", ErrRolledBack, err)
	}
	return l.settleIn(ctx, tx, s)
}

// ReleaseIn is Release in a transaction, which it commits: only the transaction's writes are
// left behind. With a nil tx it is Release. The errors are those of CompleteIn, but after
// ErrStore the outcome stays unknown, because there is no record.
func (l *Lease) ReleaseIn(ctx context.Context, tx Transaction) error {
	if tx == nil {
		return l.Release()
	}
	return l.settleIn(ctx, tx, store.Settlement{Outcome: store.Release})
}

// settleIn settles in a transaction. The lease is not renewed meanwhile, because a renewal
// would wait for the transaction.
func (l *Lease) settleIn(ctx context.Context, tx Transaction, s store.Settlement) error {
	defer tx.Rollback()
	l.keeper.renewer.pause(l)
	defer l.keeper.renewer.resume(l)
	asked, sent := false, time.Now()
	var unknown error // why the outcome is unknown
	err := l.settleBy(ctx, s, func(ctx context.Context, s store.Settlement) (err, callErr error) {
		asked = true
		if ctx.Err() != nil { // so the commit is not sent
			return fmt.Errorf("%w: %w", ErrRolledBack, context.Cause(ctx)), nil
		}
		if l.kept {
			// The store accepts the record of a lease again if it is sent again, and would
			// commit another transaction with it.
			return fmt.Errorf("%w: the lease may have left a record before", ErrRolledBack), nil
		}
		err = tx.Commit(ctx, s)
		if err == nil || errors.Is(err, ErrLost) || errors.Is(err, ErrRolledBack) || errors.Is(err, ErrTransactionEnded) {
			return err, nil
		}
		unknown = err
		return nil, err
	})
	switch {
	case err == nil && !asked:
		return fmt.Errorf("%w: the lease was settled before", ErrRolledBack)
	case unknown != nil:
		tx.Rollback() // because the store would wait for what is left of it
		return l.findOut(ctx, s, sent, unknown)
	}
	return err
}

// findOut finds out the outcome of a transaction that should have settled the lease. why says
// why it is unknown. If the lease can be abandoned, the transaction cannot be committed any
// more.
func (l *Lease) findOut(ctx context.Context, s store.Settlement, sent time.Time, why error) error {
	l.settling.Lock()
	defer l.settling.Unlock()
	s.Key, s.Token = l.claim.Key, l.claim.Token
	abandon := store.Settlement{Key: s.Key, Token: s.Token, Outcome: store.Abandon}
	unknown := &StoreError{Op: "settle", Err: why}
	for again := retry(ctx, l.keeper.done, time.Now()); ; {
		err, _, callErr := l.keeper.settles.Do(ctx, nil, abandon, nil)
		if callErr == nil && err == nil {
			l.finish(store.Abandon)
			return fmt.Errorf("%w: %w", ErrRolledBack, why)
		}
		if callErr == nil && errors.Is(err, ErrLost) {
			if s.Outcome != store.Keep {
				return unknown
			}
			switch kept, ok := l.left(ctx, s); {
			case kept:
				l.finish(store.Keep)
				return nil
			case ok && time.Since(sent) >= s.Retention:
				return unknown // because the store may have deleted the record by now
			case ok:
				l.settled = true
				l.keeper.renewer.lose(l)
				return ErrLost
			}
		}
		if !again(anyWait) {
			return unknown
		}
	}
}

// left reports whether the settlement's record is there; ok is false if the store did not
// answer. It sends the settlement again. The token does not hold the key any more, so the
// store accepts the settlement only if this token has left the record before.
func (l *Lease) left(ctx context.Context, s store.Settlement) (kept, ok bool) {
	s.Data = bytes.Clone(s.Data) // because a call that was given up may still read it
	err, _, callErr := l.keeper.settles.Do(ctx, nil, s, nil)
	return err == nil, callErr == nil && (err == nil || errors.Is(err, ErrLost))
}

// unsure reports whether it is unknown if the lease left a record.
func (l *Lease) unsure() bool {
	l.settling.Lock()
	defer l.settling.Unlock()
	return l.kept
}
