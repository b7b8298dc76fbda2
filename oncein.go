package dibs

import (
	"cmp"
	"context"
	"errors"
	"time"
)

// MaxConflicts is how often a run in a transaction is made in all when each fell
// victim to a conflict with another one.
const MaxConflicts = 5

// OnceIn is Once in a database transaction: what fn writes in it and the result
// that is remembered are committed together. A crash at any moment leaves both or
// neither, so what fn does in the transaction is done exactly once.
//
// fn finds the transaction in its context, with what the store that made t has for
// that. When fn returns an error, the transaction is rolled back; if the error is to
// be remembered (see OnceOptions.Remember), it is, without what fn wrote. When the
// transaction fell victim to a conflict with another one, it is rolled back and fn
// is called again, in a new one and under the same lease, up to MaxConflicts times
// in all: what fn does outside of the transaction must bear that (Step helps).
// AtMostOnce has no place here: a run that crashed has done nothing.
//
// It returns what Once returns, but a result that cannot be kept is not committed
// either: the error wraps ErrRolledBack, and not a *KeepError. ErrStore, once fn was
// called and unless fn itself returned it, means that nobody would tell what became
// of the transaction: who asks again under the same key finds out.
func OnceIn[T any](ctx context.Context, c *Client, t Transactor, key string, o *OnceOptions, fn func(context.Context) (T, error)) (result T, err error) {
	if o == nil {
		o = &OnceOptions{}
	}
	switch {
	case t == nil:
		return result, errors.New("dibs: OnceIn was given no Transactor")
	case o.AtMostOnce:
		return result, errors.New("dibs: OnceOptions.AtMostOnce is not for OnceIn: a run that crashed in a transaction has done nothing")
	}
	lease, err := o.acquire(ctx, c, key)
	if done, ok := errors.AsType[*DoneError](err); ok {
		return recall[T](done)
	}
	if err != nil {
		return result, err
	}
	defer func() {
		// It does nothing after a commit. Where nobody knows of one, the lease may
		// be over without having been lost.
		if lost := lease.Release(); errors.Is(lost, ErrLost) && !errors.Is(err, ErrLost) && !lease.unsure() {
			err = errors.Join(err, lost)
		}
	}()
	r := retry{began: time.Now()}
	for try := 1; ; try++ {
		var again bool
		result, again, err = runIn(lease, t, o, fn)
		if !again || try == MaxConflicts || lease.Err() != nil || !c.again(lease.Context(), &r, anyWait) {
			return result, err
		}
	}
}

// runIn runs fn in one transaction. again says that it was rolled back because of a
// conflict.
func runIn[T any](l *Lease, t Transactor, o *OnceOptions, fn func(context.Context) (T, error)) (result T, again bool, err error) {
	tx, err := t.Begin(l.Context())
	if err != nil {
		return result, false, err
	}
	defer tx.Rollback() // on every way out, a panic and Goexit among them
	result, err = fn(WithTransaction(l.Context(), tx))
	retention := cmp.Or(o.Retention, DefaultRetention)
	if err != nil {
		again = tx.Conflicted(err)
		tx.Rollback()
		if again || o.Remember == nil || !o.Remember(err) {
			return result, again, err
		}
		return result, false, l.keepResult(result, err, retention)
	}
	data, err := encode(result, nil)
	if err != nil {
		return result, false, errors.Join(ErrRolledBack, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), keepPatience)
	defer cancel()
	if err := l.CompleteIn(ctx, tx, data, retention); err != nil {
		var none T // what was done is undone
		return none, errors.Is(err, ErrRolledBack) && tx.Conflicted(err), err
	}
	return result, false, nil
}
