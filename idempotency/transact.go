package idempotency

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/dibs-go/dibs"
)

// handleIn is handle with a transaction.
//
//	begin ── handler ── commits ── settle and commit, in one ── send
//	  │         │          └── refused, failed ── roll back ── as without one
//	  └── in conflict with another transaction ── once more, if nothing was sent
func (v *visit) handleIn(lease *dibs.Lease, start time.Time) {
	for v.tryIn(lease, start) {
		v.event.Conflicts++
		v.answer = v.answer.again()
		v.run.failure.Store(uint32(noFailure))
		// Who met in a conflict must not meet again.
		pause := time.NewTimer(rand.N(time.Duration(v.event.Conflicts) * conflictPause))
		select {
		case <-pause.C:
		case <-v.run.Done():
			pause.Stop()
		}
	}
}

// conflictPause is how long a run stays away after its first conflict, at most.
const conflictPause = 10 * time.Millisecond

// tryIn runs the handler in one transaction. It reports true when nothing came of
// it because of a conflict, and it should be tried again; otherwise the request has
// been served.
func (v *visit) tryIn(lease *dibs.Lease, start time.Time) (again bool) {
	m := v.m
	tx, err := m.options.Transactor.Begin(&v.run)
	if err != nil {
		v.event.Err = err
		v.endRun(start)
		if v.event.Conflicts > 0 {
			v.concludeNothing(lease, problemRolledBack, OutcomeRolledBack)
		} else {
			v.concludeNothing(lease, problemUnavailable, OutcomeUnavailable)
		}
		return false
	}
	v.tx = tx
	v.next.ServeHTTP(v.answer, v.forHandler(v.requestIn(tx)))
	whole := v.answer.finish()
	if v.run.failed() != noFailure || !whole || !m.options.Commits(v.status()) {
		conflicted := tx.Conflicted(nil)
		v.rollback()
		if conflicted && v.mayTryAgain() {
			return true
		}
		v.endRun(start)
		if conflicted && whole && v.run.failed() == noFailure {
			// What it refused because of a conflict is no answer to keep.
			v.event.Err = dibs.ErrRolledBack
			v.concludeNothing(lease, problemRolledBack, OutcomeRolledBack)
			return false
		}
		v.conclude(lease, whole)
		return false
	}
	v.endRun(start)
	if v.limited {
		v.event.Err = context.DeadlineExceeded
		v.rollback()
		v.concludeNothing(lease, problemRolledBack, OutcomeRolledBack)
		return false
	}
	return v.commit(lease)
}

// requestIn returns the request for one try. What an earlier one has changed in it
// is not seen, and what it left behind does not read this one's body.
func (v *visit) requestIn(tx dibs.Transaction) *http.Request {
	v.shown = true
	r := v.r.Clone(dibs.WithTransaction(&v.run, tx))
	switch {
	case r.Body == nil || r.Body == http.NoBody:
	case v.event.Conflicts == 0:
		r.Body = &v.body
	default:
		r.Body = io.NopCloser(v.body.section())
	}
	return r
}

// mayTryAgain reports whether the handler may run once more.
func (v *visit) mayTryAgain() bool {
	return !v.answer.streaming && v.event.Conflicts+1 < dibs.MaxConflicts && v.run.Err() == nil &&
		time.Now().Before(v.run.limit)
}

// commit settles the key in the transaction, commits, and sends the answer. again
// is that of tryIn.
func (v *visit) commit(lease *dibs.Lease) (again bool) {
	m := v.m
	how, record := v.ends(v.control())
	ctx, cancel := context.WithTimeout(context.Background(), m.options.StoreTimeout)
	defer cancel()
	asked := time.Now()
	var err error
	if how.outcome == dibs.Keep {
		err = lease.CompleteIn(ctx, v.tx, record, how.retention)
	} else {
		err = lease.ReleaseIn(ctx, v.tx)
	}
	v.event.Settling += time.Since(asked)
	conflicted := err != nil && v.tx.Conflicted(err)
	v.tx = nil
	switch {
	case err == nil:
		v.settled = true
		v.leave(how, record)
		v.untether()
		v.send(false, OutcomeRan)
	case errors.Is(err, dibs.ErrLost):
		v.settled = true
		v.leave(release, nil)
		v.send(true, OutcomeRan)
	case conflicted && errors.Is(err, dibs.ErrRolledBack) && v.mayTryAgain():
		m.running.of(v).setFor(v, v.run.limit)
		return true
	case errors.Is(err, dibs.ErrTooLarge) && !v.tooLarge && v.mayTryAgain():
		// Nothing was committed. Once more, to be committed with a tombstone.
		v.tooLarge = true
		m.running.of(v).setFor(v, v.run.limit)
		return true
	case errors.Is(err, dibs.ErrRolledBack):
		v.event.Err = err
		v.concludeNothing(lease, problemRolledBack, OutcomeRolledBack)
	case errors.Is(err, dibs.ErrTransactionEnded):
		v.event.Err = err
		v.concludeNothing(lease, problemEnded, OutcomeInterrupted)
	default:
		// The key is given back all the same: it is held only if nothing was
		// committed.
		v.event.Err = err
		v.concludeNothing(lease, problemUnsure, OutcomeRolledBack)
	}
	return false
}

// concludeNothing gives the key back without an answer to keep, and says so.
func (v *visit) concludeNothing(lease *dibs.Lease, p Problem, o Outcome) {
	v.settle(lease, release, nil)
	if v.answer.streaming {
		v.breakOff(o)
	}
	v.answer.drop()
	v.answer.close()
	v.refuse(o, p)
}

// rollback rolls the run's transaction back, if there is one.
func (v *visit) rollback() {
	if v.tx != nil {
		v.tx.Rollback()
		v.tx = nil
	}
}
