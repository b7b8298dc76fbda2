package idempotency

import (
	"context"
	"errors"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/store"
)

// handleIn is handle with a transaction.
//
//	begin ── handler ── commits ── settle and commit, in one ── send
//	  │         │          └── refused, failed ── roll back ── as without one
//	  └── in conflict with another transaction ── once more, if nothing was sent
func (r *run) handleIn() {
	for r.tryIn() {
		r.event.Conflicts++
		r.answer = r.newRecorder()
		r.ctx.failure.Store(uint32(noFailure))
		_ = conflictPause.Wait(r.ctx, r.event.Conflicts)
	}
}

// conflictPause is the pause after a conflict.
var conflictPause = backoff.Exponential{Min: 10 * time.Millisecond, Max: 50 * time.Millisecond}

// tryIn runs the handler in one transaction. It reports true if the transaction was in conflict
// with another one and the handler may run again. Otherwise the request has been served.
func (r *run) tryIn() (again bool) {
	tx, err := r.m.options.Transactor.Begin(r.ctx)
	if err != nil {
		r.event.Err = err
		r.event.Handler = time.Since(r.original.began)
		p, kind := problemUnavailable, EventUnavailable
		if r.event.Conflicts > 0 {
			p, kind = problemRolledBack, EventRolledBack
		}
		r.concludeNothing(p, kind)
		return false
	}
	r.tx = tx
	ctx := store.WithTransaction(r.ctx, tx)
	r.next.ServeHTTP(r.answer, r.forwarded(ctx).Clone(ctx)) // nothing is shared with other tries
	whole := r.answer.finish()
	r.event.Handler = time.Since(r.original.began)
	answered := whole && r.ctx.failure.Load() == uint32(noFailure)
	if answered && r.m.options.commits(r.answer.result.Status) {
		if r.ctx.Err() == context.DeadlineExceeded {
			r.event.Err = context.DeadlineExceeded
			r.rollback()
			r.concludeNothing(problemRolledBack, EventRolledBack)
			return false
		}
		return r.commit()
	}
	conflicted := tx.Conflicted(nil)
	r.rollback()
	switch {
	case conflicted && r.mayTryAgain():
		return true
	case conflicted && answered: // a refusal because of a conflict is not kept
		r.event.Err = dibs.ErrRolledBack
		r.concludeNothing(problemRolledBack, EventRolledBack)
	default:
		r.conclude(whole)
	}
	return false
}

// mayTryAgain reports whether the handler may run once more.
func (r *run) mayTryAgain() bool {
	return !r.answer.streaming && r.event.Conflicts+1 < dibs.MaxConflicts && r.ctx.Err() == nil
}

// commit settles the key in the transaction, commits, and sends the answer. again is that of tryIn.
func (r *run) commit() (again bool) {
	how := r.settlement()
	limit, stop := r.m.withStoreTimeout(context.Background())
	defer stop()
	asked := time.Now()
	var err error
	if how.outcome == store.Keep {
		err = r.lease.CompleteIn(limit, r.tx, how.record, how.retention)
	} else {
		err = r.lease.ReleaseIn(limit, r.tx)
	}
	r.event.Settling += time.Since(asked)
	conflicted := err != nil && r.tx.Conflicted(err)
	r.tx = nil
	switch {
	case err == nil:
		r.settled = true
		r.kept(how)
		r.m.duplicates.leave(r.req.key, r.original, how.record)
		r.send(false, EventRan)
		return false
	case errors.Is(err, dibs.ErrLost):
		r.settled = true
		r.m.duplicates.leave(r.req.key, r.original, nil)
		r.send(true, EventRan)
		return false
	case conflicted && errors.Is(err, dibs.ErrRolledBack) && r.mayTryAgain():
		return true
	case errors.Is(err, dibs.ErrTooLarge) && errors.Is(err, dibs.ErrRolledBack) && !r.tooLarge && r.mayTryAgain():
		r.tooLarge = true // nothing was committed; the next try leaves a tombstone
		return true
	}
	r.event.Err = err
	switch {
	case errors.Is(err, dibs.ErrRolledBack):
		r.concludeNothing(problemRolledBack, EventRolledBack)
	case errors.Is(err, dibs.ErrTransactionEnded):
		r.concludeNothing(problemEnded, EventInterrupted)
	default: // the lease is held only if nothing was committed, so releasing it is safe
		r.concludeNothing(problemUnsure, EventRolledBack)
	}
	return false
}

// concludeNothing releases the key without an answer to keep, and says so.
func (r *run) concludeNothing(p Problem, kind EventKind) {
	r.settle(settlement{outcome: store.Release})
	if r.answer.streaming {
		r.breakOff(kind)
	}
	r.refuse(kind, p)
}

// rollback rolls the run's transaction back, if there is one.
func (r *run) rollback() {
	if r.tx != nil {
		r.tx.Rollback()
		r.tx = nil
	}
}
