package dibs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/store"
)

// MaxConflicts is how often OnceIn calls fn in all if each transaction conflicts with
// another one.
const MaxConflicts = 5

// OnceIn is Once in a database transaction: what fn writes in it and the remembered result
// are committed together. A crash at any moment leaves both or neither, so fn's writes in
// the transaction are made exactly once.
//
// fn gets the transaction from its context, with the function that the store of t has for
// that. If fn returns an error, the transaction is rolled back. The error is still
// remembered if OnceOptions.Remember says so. If the transaction conflicts with another one,
// it is rolled back, and fn is called again in a new transaction under the same lease. fn is
// called MaxConflicts times at most. So what fn does outside the transaction may happen again (Step
// helps). AtMostOnce is refused, because a run that crashed has done nothing.
//
// OnceIn returns what Once returns. But if the result cannot be stored, the transaction is
// rolled back and the error wraps ErrRolledBack instead of being a *KeepError. The next caller
// then runs fn, whatever OnceOptions.Rerun says. If fn was
// called and did not return ErrStore itself, ErrStore means that the outcome of the
// transaction is unknown: the next call under the same key finds it out.
func OnceIn[T any](ctx context.Context, c *Client, t Transactor, key string, o *OnceOptions, fn func(context.Context) (T, error)) (result T, err error) {
	if o == nil {
		o = &OnceOptions{}
	}
	switch {
	case t == nil:
		return result, errors.New("dibs: OnceIn was given no Transactor")
	case fn == nil:
		return result, noFunction("OnceIn")
	case o.AtMostOnce:
		return result, errors.New("dibs: OnceOptions.AtMostOnce is not for OnceIn, because a run that crashed in a transaction has done nothing")
	}
	lease, err := o.acquire(ctx, c.Acquire, key)
	if done, ok := errors.AsType[*DoneError](err); ok {
		return recall[T](done)
	}
	if err != nil {
		return result, err
	}
	defer func() {
		// After a commit it does nothing. If the outcome of the commit is unknown, the
		// lease may have ended without having been lost.
		if lost := lease.Release(); errors.Is(lost, ErrLost) && !errors.Is(err, ErrLost) && !lease.unsure() {
			err = errors.Join(err, lost)
		}
	}()
	again := retry(lease.Context(), c.done, time.Now())
	for try := 1; ; try++ {
		var conflicted bool
		result, conflicted, err = runIn(lease, t, o, fn)
		if !conflicted || try == MaxConflicts || lease.Err() != nil || !again(anyWait) {
			return result, err
		}
	}
}

// runIn runs fn in one transaction. conflicted says that the transaction was rolled back
// because of a conflict.
func runIn[T any](l *Lease, t Transactor, o *OnceOptions, fn func(context.Context) (T, error)) (result T, conflicted bool, err error) {
	tx, err := t.Begin(l.Context())
	if err != nil {
		return result, false, err
	}
	defer tx.Rollback() // even after a panic and Goexit
	result, err = fn(store.WithTransaction(l.Context(), tx))
	if err != nil {
		conflicted = tx.Conflicted(err)
		tx.Rollback()
		if conflicted || o.Remember == nil || !o.Remember(err) {
			return result, conflicted, err
		}
		return result, false, l.keepResult(result, err, &OnceOptions{Retention: o.Retention, Rerun: true})
	}
	var none T // because what fn did is rolled back
	data, err := encode(result, nil)
	if err != nil {
		return none, false, fmt.Errorf("%w, so nothing in it was done: its result cannot be stored: %w", ErrRolledBack, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), keepPatience)
	defer cancel()
	if err := l.CompleteIn(ctx, tx, data, cmp.Or(o.Retention, defaultRetention)); err != nil {
		return none, errors.Is(err, ErrRolledBack) && tx.Conflicted(err), err
	}
	return result, false, nil
}
