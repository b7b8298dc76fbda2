package dibs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrRolledBack says of a transaction that was to be committed that it was rolled
// back, and that nothing of it was done.
var ErrRolledBack = errors.New("dibs: the transaction was rolled back")

// ErrTransactionEnded says of a transaction that was to be committed that it was ended before,
// by the code that ran in it. What that did may be committed, and no record is: who
// asks again runs again.
var ErrTransactionEnded = errors.New("dibs: the run has ended its transaction itself")

// Transactor begins transactions of the application in the database in which the
// keys are too, so that what is done under a key and the key's record are committed
// together. Stores that can do that make one; see their Transactions.
//
//	claim ── granted ── begin ── the application's statements ── settle ── commit
//	(by the store's own connections)          (all in one transaction)
//
// A crash at any moment leaves either both or neither: before the commit the
// database rolls back, and the lease runs out as any other; after it, the record
// answers whoever asks again. Nobody waits for the transaction but those who claim
// the same key, and they as for any lease.
type Transactor interface {
	// Begin begins a transaction, which is rolled back when ctx ends.
	Begin(ctx context.Context) (Transaction, error)
}

// Transaction is a transaction that has begun. It is used by one goroutine.
type Transaction interface {
	// Commit settles a key as the transaction's last statement, as Store.Settle
	// says, and commits. It returns nil when both are done; ErrLost when the token
	// does not hold the key (also if it has left a record there), and an error that
	// wraps ErrRolledBack when it could not be done for another reason: all is rolled
	// back then. After any other error both may have happened, or neither. It does
	// not keep the settlement's data.
	Commit(ctx context.Context, s Settlement) error

	// Rollback rolls back. It does nothing when the transaction is over.
	Rollback()

	// Conflicted reports whether the transaction fell victim to another one, with
	// which it was in conflict (a serialization failure, a deadlock), so that all of
	// it may be tried again. err is what the application or Commit returned, or nil:
	// then it is about what the transaction saw by itself.
	Conflicted(err error) bool
}

type transactionKey struct{}

// WithTransaction returns a context that carries the transaction, for those who
// write in it. They find it with what the store that made it has for that.
func WithTransaction(ctx context.Context, tx Transaction) context.Context {
	return context.WithValue(ctx, transactionKey{}, tx)
}

// TransactionFrom returns the transaction that ctx carries; nil for none.
func TransactionFrom(ctx context.Context) Transaction {
	tx, _ := ctx.Value(transactionKey{}).(Transaction)
	return tx
}

// CompleteIn is Complete in a transaction, which it commits: what was done in it
// and the record are both there afterwards, or neither is. A nil tx is Complete.
//
// It returns nil when that is done; ErrLost when the lease was lost, or an error
// that wraps ErrRolledBack, when nothing was done; one that wraps ErrTransactionEnded when the
// transaction was ended before; and ErrStore when neither the
// transaction nor, in ctx's time, the store would tell: who claims the key again
// finds out. After ErrRolledBack the lease is still held if the transaction said so
// itself, and then the caller may begin another one.
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

// ReleaseIn is Release in a transaction, which it commits: nothing is left behind
// but what was done in it. The errors are those of CompleteIn; after ErrStore nobody
// can find out. A nil tx is Release.
func (l *Lease) ReleaseIn(ctx context.Context, tx Transaction) error {
	if tx == nil {
		return l.Release()
	}
	return l.settleIn(ctx, tx, Settlement{Outcome: Release})
}

// settleIn settles in a transaction. Meanwhile nothing renews the lease: that would
// wait for the transaction.
func (l *Lease) settleIn(ctx context.Context, tx Transaction, s Settlement) error {
	defer tx.Rollback() // unless it is over
	l.client.renewer.pause(l)
	defer l.client.renewer.resume(l)
	asked, unheard, sent := false, false, time.Now()
	err := l.settleBy(ctx, s, func(ctx context.Context, s Settlement) (err, callErr error) {
		asked = true
		if l.kept {
			// The store takes a record of one lease as often as it is sent, and
			// another transaction would be committed with it.
			return fmt.Errorf("%w: the lease may have left a record before", ErrRolledBack), nil
		}
		err = tx.Commit(ctx, s)
		if err == nil || errors.Is(err, ErrLost) || errors.Is(err, ErrRolledBack) || errors.Is(err, ErrTransactionEnded) {
			return err, nil
		}
		unheard = true
		return nil, err
	})
	switch {
	case err == nil && !asked:
		return fmt.Errorf("%w: the lease was settled before", ErrRolledBack)
	case unheard:
		tx.Rollback() // what is left of it would be waited for
		return l.resolve(ctx, s, sent, err)
	}
	return err
}

// resolve finds out what became of a transaction that was to settle the lease. If
// the lease can be ended without it, it will not be committed any more.
func (l *Lease) resolve(ctx context.Context, s Settlement, sent time.Time, unknown error) error {
	l.settling.Lock()
	defer l.settling.Unlock()
	s.Key, s.Token = l.claim.Key, l.claim.Token
	abandon := Settlement{Key: s.Key, Token: s.Token, Outcome: Abandon}
	r := retry{began: time.Now()}
	for {
		err, _, callErr := l.client.settles.do(ctx, nil, abandon, nil)
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
				return unknown // a record would be forgotten by now
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

// left reports whether the settlement's record is there; not ok if the store did not
// say. The token does not hold the key any more, so that nothing can be written; but
// a record that it has left is taken once more. Another's, of the same data, is not.
func (l *Lease) left(ctx context.Context, s Settlement) (kept, ok bool) {
	s.Data = bytes.Clone(s.Data) // a call that was given up may still read it
	err, _, callErr := l.client.settles.do(ctx, nil, s, nil)
	return err == nil, callErr == nil && (err == nil || errors.Is(err, ErrLost))
}

// unsure reports whether nobody told what became of a record.
func (l *Lease) unsure() bool {
	l.settling.Lock()
	defer l.settling.Unlock()
	return l.kept
}
