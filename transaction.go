package dibs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrRolledBack says that a transaction was rolled back instead of committed, so that
// nothing in it was done.
var ErrRolledBack = errors.New("dibs: the transaction was rolled back")

// ErrTransactionEnded says that the code that ran in a transaction has ended it before the
// commit. Its writes may be committed, but there is no record, so the next caller runs
// again.
var ErrTransactionEnded = errors.New("dibs: the run has ended its transaction itself")

// Transactor begins transactions in the database that has both the application's tables and
// the keys, so that the work under a key and the key's record are committed together. Stores
// that can do that make one; see their Transactions.
//
//	claim ── granted ── begin ── the application's statements ── settle ── commit
//	(by the store's own connections)          (all in one transaction)
//
// A crash at any moment leaves both or neither. Before the commit the database rolls back
// and the lease expires. After the commit the record answers later claims. Only claims of
// the same key wait for the transaction, as for any lease.
type Transactor interface {
	// Begin begins a transaction. It is rolled back when ctx ends.
	Begin(ctx context.Context) (Transaction, error)
}

// Transaction is a transaction that has begun. Only one goroutine may use it at a time.
type Transaction interface {
	// Commit settles a key as the transaction's last statement, as Store.Settle does, and
	// commits. It returns ErrLost if the token does not hold the key, even if the token has
	// left a record there. If it failed for another known reason, it returns an error that
	// wraps ErrRolledBack. In both cases everything is rolled back. After any other error both
	// happened or neither did. Commit does not keep the settlement's data.
	Commit(ctx context.Context, s Settlement) error

	// Rollback rolls back. It does nothing if the transaction has ended.
	Rollback()

	// Conflicted reports whether the database ended the transaction because it conflicted
	// with another one (a serialization failure, a deadlock), so that all of it may be run
	// again. err is what the application or Commit returned. With nil, Conflicted reports
	// what the transaction noticed itself.
	Conflicted(err error) bool
}

type transactionKey struct{}

// WithTransaction returns a context that carries the transaction, for the code that writes
// in it. That code gets it with the function that the transaction's store has for that.
func WithTransaction(ctx context.Context, tx Transaction) context.Context {
	return context.WithValue(ctx, transactionKey{}, tx)
}

// TransactionFrom returns the transaction that ctx carries, or nil.
func TransactionFrom(ctx context.Context) Transaction {
	tx, _ := ctx.Value(transactionKey{}).(Transaction)
	return tx
}

// CompleteIn is Complete in a transaction, which it commits: the transaction's writes and
// the record are both committed, or neither is. With a nil tx it is Complete.
//
// It returns ErrLost if the lease was lost, and an error that wraps ErrRolledBack if the
// transaction was rolled back; in both cases nothing was done. It returns an error that
// wraps ErrTransactionEnded if the transaction had ended before. It returns ErrStore if the
// outcome is unknown and the store did not answer before ctx ended: the next claim of the
// key finds it out. If Transaction.Commit itself returned ErrRolledBack, the lease is still
// held, and the caller may begin another transaction.
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
	return l.settleIn(ctx, tx, Settlement{Outcome: Release})
}

// settleIn settles in a transaction. The lease is not renewed meanwhile, because a renewal
// would wait for the transaction.
func (l *Lease) settleIn(ctx context.Context, tx Transaction, s Settlement) error {
	defer tx.Rollback()
	l.client.renewer.pause(l)
	defer l.client.renewer.resume(l)
	asked, unknown, sent := false, false, time.Now()
	err := l.settleBy(ctx, s, func(ctx context.Context, s Settlement) (err, callErr error) {
		asked = true
		if l.kept {
			// The store accepts the record of a lease again if it is sent again, and would
			// commit another transaction with it.
			return fmt.Errorf("%w: the lease may have left a record before", ErrRolledBack), nil
		}
		err = tx.Commit(ctx, s)
		if err == nil || errors.Is(err, ErrLost) || errors.Is(err, ErrRolledBack) || errors.Is(err, ErrTransactionEnded) {
			return err, nil
		}
		unknown = true
		return nil, err
	})
	switch {
	case err == nil && !asked:
		return fmt.Errorf("%w: the lease was settled before", ErrRolledBack)
	case unknown:
		tx.Rollback() // because the store would wait for what is left of it
		return l.resolve(ctx, s, sent, err)
	}
	return err
}

// resolve finds out the outcome of a transaction that should have settled the lease. If the
// lease can be abandoned, the transaction cannot be committed any more.
func (l *Lease) resolve(ctx context.Context, s Settlement, sent time.Time, unknown error) error {
	l.settling.Lock()
	defer l.settling.Unlock()
	s.Key, s.Token = l.claim.Key, l.claim.Token
	abandon := Settlement{Key: s.Key, Token: s.Token, Outcome: Abandon}
	r := retry{began: time.Now()}
	for {
		err, _, callErr := l.client.settles.Do(ctx, nil, abandon, nil)
		if callErr == nil && err == nil {
			l.finish(Abandon)
			return fmt.Errorf("%w: %w", ErrRolledBack, errors.Unwrap(unknown))
		}
		if callErr == nil && errors.Is(err, ErrLost) {
			if s.Outcome != Keep {
				return unknown
			}
			switch kept, ok := l.left(ctx, s); {
			case kept:
				l.finish(Keep)
				return nil
			case ok && time.Since(sent) >= s.Retention:
				return unknown // because the store may have deleted the record by now
			case ok:
				l.settled = true
				l.client.renewer.lose(l)
				return ErrLost
			}
		}
		if !l.client.again(ctx, &r, anyWait) {
			return unknown
		}
	}
}

// left reports whether the settlement's record is there; ok is false if the store did not
// answer. It sends the settlement again. The token does not hold the key any more, so the
// store accepts the settlement only if this token has left the record before.
func (l *Lease) left(ctx context.Context, s Settlement) (kept, ok bool) {
	s.Data = bytes.Clone(s.Data) // because a call that was given up may still read it
	err, _, callErr := l.client.settles.Do(ctx, nil, s, nil)
	return err == nil, callErr == nil && (err == nil || errors.Is(err, ErrLost))
}

// unsure reports whether it is unknown if the lease left a record.
func (l *Lease) unsure() bool {
	l.settling.Lock()
	defer l.settling.Unlock()
	return l.kept
}
