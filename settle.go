package dibs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/internal/batch"
	"github.com/dibs-go/dibs/store"
)

// Release ends the lease and leaves nothing behind. It returns nil even when the lease was
// settled before. It returns ErrLost when the lease was lost before it could be released,
// ErrStore when the store did not answer, ErrBusy when the store was busy with the key for
// all of Options.Timeout, or another error of the store. After the last three the lease is
// released in the background, or expires. Release does not end with the context of Acquire.
func (l *Lease) Release() error { return l.endAs(store.Release) }

// endAs ends the lease now or in the background.
func (l *Lease) endAs(how store.Outcome) error {
	err := l.settle(context.Background(), store.Settlement{Outcome: how})
	if err != nil && !errors.Is(err, ErrLost) {
		l.settling.Lock()
		defer l.settling.Unlock()
		l.settled = true
		l.keeper.undoer.add(l.claim, how) // before Close can see that the lease is not held
		l.keeper.renewer.remove(l)
		l.end(nil)
		l.ended(endings[how])
	}
	return err
}

// Complete ends the lease and leaves data behind as the key's record, kept for the
// retention (at least 1 ms). It returns ErrLost when the lease was lost, and then nothing is
// written. It returns ErrFull when the store has no room, ErrBusy when the store was busy
// with the key until ctx ended or Options.Timeout was over, and ErrStore when it is unknown
// what the store did, or ctx ended before the call was sent. After the last three the caller
// may call Complete again, or Release. Err then says whether the lease is still trusted.
func (l *Lease) Complete(ctx context.Context, data []byte, retention time.Duration) error {
	s, err := l.keep(data, retention)
	if err != nil {
		return err
	}
	return l.settle(ctx, s)
}

// keep returns the settlement that leaves data behind.
func (l *Lease) keep(data []byte, retention time.Duration) (store.Settlement, error) {
	if retention < time.Millisecond {
		return store.Settlement{}, fmt.Errorf("dibs: the retention is %v; it must be at least %v", retention, time.Millisecond)
	}
	if l.claim.Permits > 1 {
		return store.Settlement{}, errors.New("dibs: a key with more than one permit cannot have a record")
	}
	return store.Settlement{Outcome: store.Keep, Data: data, Retention: retention}, nil
}

// Abandon ends the lease as if its holder had crashed: the next holder learns of it, and a
// lease with AtMostOnce leaves an unknown outcome. It returns the errors of Complete.
func (l *Lease) Abandon(ctx context.Context) error {
	return l.settle(ctx, store.Settlement{Outcome: store.Abandon})
}

// Undo ends the lease as if it had not been granted, for a holder that has done nothing.
// The next holder gets the same Attempt and Progress as this one. If the lease was redeemed
// from a reserved place, the place can be redeemed again. What was saved under the lease is
// dropped. It returns the errors of Complete.
func (l *Lease) Undo(ctx context.Context) error {
	return l.settle(ctx, store.Settlement{Outcome: store.Undo})
}

// settle ends the lease in the store.
func (l *Lease) settle(ctx context.Context, s store.Settlement) error {
	return l.settleBy(ctx, s, func(ctx context.Context, s store.Settlement) (err, callErr error) {
		if ctx.Err() == nil {
			err, callErr = l.keeper.settle(ctx, s, l.overdue)
		} else {
			callErr = batch.ErrNotSent
		}
		switch {
		case errors.Is(callErr, batch.ErrNotSent): // nothing was done
			return &StoreError{Op: "settle", Err: context.Cause(ctx)}, nil
		case errors.Is(callErr, batch.ErrGaveUp):
			callErr = context.Cause(ctx)
		}
		return err, callErr
	})
}

// settle sends a settlement. While the store is busy with the key it sends it again, until
// ctx ends, over says so, or the client's Timeout is over. callErr says why the outcome is
// unknown.
func (k *keeper) settle(ctx context.Context, s store.Settlement, over func() bool) (err, callErr error) {
	for again := retry(ctx, k.done, time.Now()); ; {
		err, _, callErr = k.settles.Do(ctx, nil, s, nil)
		if err != nil && !store.Definite(err) {
			err, callErr = nil, err
		}
		if callErr != nil || !errors.Is(err, ErrBusy) || over() || !again(k.timeout) {
			return err, callErr
		}
	}
}

// settleBy ends the lease by one call. err is what the store said of the settlement.
// callErr says why the outcome is unknown.
func (l *Lease) settleBy(ctx context.Context, s store.Settlement, call func(context.Context, store.Settlement) (err, callErr error)) error {
	l.settling.Lock()
	defer l.settling.Unlock()
	if l.settled {
		return nil
	}
	if l.keeper.observe != nil {
		l.settleFrom = time.Now()
	}
	s.Key, s.Token = l.claim.Key, l.claim.Token
	resend := l.kept && s.Outcome == store.Keep && !l.overdue()
	if l.lost() && !resend {
		// The holder's context has ended with ErrLost, so the lease stays lost. What the
		// store still has of it is abandoned, as it would be when it expires.
		l.settled = true
		l.keeper.renewer.lose(l)
		l.keeper.undoer.abandon(l.claim)
		return l.loss()
	}
	first := l.doubt()
	err, callErr := call(ctx, s)
	if callErr != nil {
		// If the record was written, a renewal finds no lease. So a renewal cannot tell any
		// more whether the lease is lost.
		l.kept = l.kept || s.Outcome == store.Keep
		l.end(&unansweredError{l.claim.Key})
		return &StoreError{Op: "settle", Err: callErr}
	}
	if first {
		l.doubted.Store(0)
	}
	switch {
	case errors.Is(err, ErrLost):
		l.settled = true
		l.keeper.renewer.lose(l)
		return l.loss()
	case err != nil:
		return err
	}
	l.finish(s.Outcome)
	return nil
}

// finish notes that the store has settled the lease. The caller has locked settling.
func (l *Lease) finish(o store.Outcome) {
	l.settled = true
	l.keeper.renewer.remove(l)
	l.end(nil)
	l.ended(endings[o])
}

// endings are the events of settled leases.
var endings = [...]EventKind{store.Release: EventReleased, store.Keep: EventCompleted, store.Abandon: EventAbandoned, store.Undo: EventReleased}

// lost reports whether the lease is lost, so that no settlement is sent any more.
func (l *Lease) lost() bool {
	return l.overdue() || isLoss(context.Cause(l.context.Context))
}

// isLoss reports whether the cause is that of a lease that is lost. A settlement that was not
// answered is not a loss, be it of this lease or of one around it.
func isLoss(cause error) bool {
	_, unanswered := errors.AsType[*unansweredError](cause)
	return errors.Is(cause, ErrLost) && !unanswered
}
