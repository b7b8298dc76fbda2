package idempotency

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
)

// handleIn is handle with a transaction.
//
//	begin ── handler ── commits ── settle and commit, in one ── send
//	  │         │          └── refused, failed ── roll back ── as without one
//	  └── in conflict with another transaction ── once more, if nothing was sent
func (s *requestState) handleIn() {
	for s.tryIn() {
		s.event.Conflicts++
		s.answer = s.newRecorder()
		s.ctx.failure.Store(uint32(noFailure))
		// Two runs that were in conflict must not meet again.
		select {
		case <-time.After(rand.N(time.Duration(s.event.Conflicts) * conflictPause)):
		case <-s.ctx.Done():
		}
	}
}

// conflictPause is the longest pause after the first conflict.
const conflictPause = 10 * time.Millisecond

// tryIn runs the handler in one transaction. It reports true if the transaction was in conflict
// with another one and the handler may run again. Otherwise the request has been served.
func (s *requestState) tryIn() (again bool) {
	tx, err := s.m.options.Transactor.Begin(s.ctx)
	if err != nil {
		s.event.Err = err
		s.event.Handler = time.Since(s.run.began)
		p, o := problemUnavailable, OutcomeUnavailable
		if s.event.Conflicts > 0 {
			p, o = problemRolledBack, OutcomeRolledBack
		}
		s.concludeNothing(p, o)
		return false
	}
	s.tx = tx
	ctx := store.WithTransaction(s.ctx, tx)
	s.next.ServeHTTP(s.answer, withoutDeadlines(s.withBody(ctx).Clone(ctx))) // nothing is shared with other tries
	whole := s.answer.finish()
	s.event.Handler = time.Since(s.run.began)
	answered := whole && s.ctx.failure.Load() == uint32(noFailure)
	if answered && s.m.options.Commits(s.status()) {
		if s.ctx.Err() == context.DeadlineExceeded {
			s.event.Err = context.DeadlineExceeded
			s.rollback()
			s.concludeNothing(problemRolledBack, OutcomeRolledBack)
			return false
		}
		return s.commit()
	}
	conflicted := tx.Conflicted(nil)
	s.rollback()
	switch {
	case conflicted && s.mayTryAgain():
		return true
	case conflicted && answered: // a refusal because of a conflict is not kept
		s.event.Err = dibs.ErrRolledBack
		s.concludeNothing(problemRolledBack, OutcomeRolledBack)
	default:
		s.conclude(whole)
	}
	return false
}

// mayTryAgain reports whether the handler may run once more.
func (s *requestState) mayTryAgain() bool {
	return !s.answer.streaming && s.event.Conflicts+1 < dibs.MaxConflicts && s.ctx.Err() == nil
}

// commit settles the key in the transaction, commits, and sends the answer. again is that of tryIn.
func (s *requestState) commit() (again bool) {
	how := s.settlement()
	limit, stop := s.m.withStoreLimit(context.Background())
	defer stop()
	asked := time.Now()
	var err error
	if how.outcome == store.Keep {
		err = s.lease.CompleteIn(limit, s.tx, how.record, how.retention)
	} else {
		err = s.lease.ReleaseIn(limit, s.tx)
	}
	s.event.Settling += time.Since(asked)
	conflicted := err != nil && s.tx.Conflicted(err)
	s.tx = nil
	switch {
	case err == nil:
		s.settled = true
		s.kept(how)
		s.m.local.leave(s.key, s.run, how.record)
		s.send(false, OutcomeRan)
		return false
	case errors.Is(err, dibs.ErrLost):
		s.settled = true
		s.m.local.leave(s.key, s.run, nil)
		s.send(true, OutcomeRan)
		return false
	case conflicted && errors.Is(err, dibs.ErrRolledBack) && s.mayTryAgain():
		return true
	case errors.Is(err, dibs.ErrTooLarge) && !s.tooLarge && s.mayTryAgain():
		s.tooLarge = true // nothing was committed; the next try leaves a tombstone
		return true
	}
	s.event.Err = err
	switch {
	case errors.Is(err, dibs.ErrRolledBack):
		s.concludeNothing(problemRolledBack, OutcomeRolledBack)
	case errors.Is(err, dibs.ErrTransactionEnded):
		s.concludeNothing(problemEnded, OutcomeInterrupted)
	default: // the lease is held only if nothing was committed, so releasing it is safe
		s.concludeNothing(problemUnsure, OutcomeRolledBack)
	}
	return false
}

// concludeNothing releases the key without an answer to keep, and says so.
func (s *requestState) concludeNothing(p Problem, o Outcome) {
	s.settle(settlement{outcome: store.Release})
	if s.answer.streaming {
		s.breakOff(o)
	}
	s.refuse(o, p)
}

// rollback rolls the run's transaction back, if there is one.
func (s *requestState) rollback() {
	if s.tx != nil {
		s.tx.Rollback()
		s.tx = nil
	}
}
