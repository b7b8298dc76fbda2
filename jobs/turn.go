package jobs

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backoff"
)

// The time until a requeued job comes back, unless its queue promotes it earlier.
const (
	requeueStep   = 50 * time.Millisecond // for each job before it
	requeueMax    = 2 * time.Second       // at most
	requeueParked = 5 * time.Second       // if its queue promotes it; up to twice this
	requeueSoon   = 100 * time.Millisecond
)

// errLimit says that the job's Limit is over.
var errLimit = errors.New("jobs: the limit of the wait is over")

// errClosed says that the Mutex was closed while a job waited in a worker.
var errClosed = errors.New("jobs: the Mutex is closed")

// queue claims the key in the job's turn and runs fn.
func (a *attempt) queue(ctx context.Context, fn func(context.Context) error) error {
	m := a.mutex
	if m.options.Policy.Replaces() {
		if newer, err := a.markNewest(ctx); err != nil {
			return a.refused(ctx, err)
		} else if newer {
			return a.replaced(ctx)
		}
	}
	// The lease's context derives from this one.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lease, err := a.turn(ctx)
	if err == nil && m.options.Total > 0 {
		var end func()
		if end, err = a.takeTotal(lease, cancel); err == nil {
			defer end()
		} else {
			a.giveBack(ctx, lease)
		}
	}
	if errors.Is(err, errLimit) {
		return a.afterLimit(ctx, err, fn)
	}
	if err != nil {
		if _, back := errors.AsType[*RequeueError](err); !back && ctx.Err() != nil && (a.placed || a.job.last(err)) {
			a.failed(ctx, err)
		}
		return a.refused(ctx, err)
	}
	if m.options.Policy.Replaces() {
		if newer, err := a.outdated(ctx); err != nil {
			_ = a.end(ctx, lease.Undo)
			return a.refused(ctx, err)
		} else if newer {
			_ = lease.Release() // after an error the client continues in the background
			return a.replaced(ctx)
		}
	}
	if m.options.Policy == CancelRunning && a.number > 0 {
		go a.cancelIfOutdated(lease.Context(), cancel)
	}
	a.graceForRun(lease.Context())
	return a.run(lease, fn)
}

// turn claims the key if it is the job's turn. It returns a *RequeueError when the job
// should wait in its queue, and errLimit, joined to dibs.ErrHeld, when its Limit is over.
func (a *attempt) turn(ctx context.Context) (*dibs.Lease, error) {
	m := a.mutex
	o := &dibs.RedeemOptions{AcquireOptions: a.acquire()}
	if m.options.Total == 0 {
		o.Grace = m.options.CrashGrace // it runs at once
	}
	lease, err := m.client.TryRedeem(ctx, a.place, o)
	if err == nil {
		a.recovers = o.Grace > 0
		if a.tries > 1 {
			a.noteWait()
		}
		return lease, nil
	}
	if !errors.Is(err, dibs.ErrHeld) {
		return nil, err
	}
	if a.noteWait(); a.pastLimit() {
		return nil, errors.Join(errLimit, err)
	}
	leave, ok := a.enter()
	if !ok {
		s, err := a.prolong(ctx, a.graceRequeued())
		if err != nil {
			return nil, err
		}
		return nil, a.requeue(s.Ahead)
	}
	defer leave()
	// If this worker dies in the wait, the other jobs of the key do not wait for CrashGrace,
	// because this job has done nothing.
	s, err := a.prolong(ctx, m.options.Grace)
	if err != nil {
		return nil, err
	}
	lease, err = a.wait(ctx)
	a.noteWait()
	switch {
	case !errors.Is(err, dibs.ErrHeld) && !errors.Is(err, errClosed):
		return lease, err
	case !errors.Is(err, errClosed) && a.pastLimit():
		return nil, errors.Join(errLimit, err)
	}
	a.keepTurn(ctx, a.graceRequeued())
	return nil, a.requeue(s.Ahead)
}

// failed ends the place of a job that failed before it began, or keeps it until the job is
// tried again.
func (a *attempt) failed(ctx context.Context, err error) {
	if a.job.last(err) || a.mutex.options.Failed == LetPass {
		a.giveUp(ctx, a.place)
	} else {
		a.keepTurn(ctx, a.graceFor(a.job.again(err)))
	}
}

// isFree reports whether an ErrHeld says that only places, not a holder, keep the caller
// from the key.
func isFree(err error) bool {
	held, ok := errors.AsType[*dibs.HeldError](err)
	return ok && held.Left == 0
}

// enter reports whether the job may wait in the worker. leave ends that.
func (a *attempt) enter() (leave func(), ok bool) {
	m := a.mutex
	switch {
	case a.job.NoRequeue:
		return func() {}, true
	case m.closed():
		return nil, false
	case m.options.Policy == Wait:
		return func() {}, true
	}
	return m.waitingIn.enter(a.job.Pool)
}

// wait waits for the job's turn in the worker.
func (a *attempt) wait(ctx context.Context) (*dibs.Lease, error) {
	m := a.mutex
	m.count(func(s *Stats) { s.Waiting++ })
	defer m.count(func(s *Stats) { s.Waiting-- })
	o := &dibs.RedeemOptions{AcquireOptions: a.acquire()}
	o.Wait = a.patience()
	a.done() // an earlier wait had no lease
	// The lease's context derives from this one; done ends it.
	waiting, end := context.WithCancelCause(ctx)
	a.waiting = end
	if a.job.NoRequeue {
		return m.client.Redeem(waiting, a.place, o)
	}
	stop := context.AfterFunc(m.closing, func() { end(errClosed) })
	lease, err := m.client.Redeem(waiting, a.place, o)
	if !stop() && err == nil {
		// The key was granted at the same moment, and its context ends.
		_ = a.end(ctx, lease.Undo)
		return nil, errClosed
	}
	return lease, err
}

// patience returns how long the job may wait in the worker; 0 means no limit.
func (a *attempt) patience() time.Duration {
	var wait time.Duration
	limit := func(d time.Duration) {
		if d = max(d, time.Millisecond); wait == 0 || d < wait {
			wait = d
		}
	}
	if left, limited := a.left(); limited {
		limit(left)
	}
	if a.job.NoRequeue {
		return wait
	}
	if a.job.Patience > 0 {
		limit(a.job.Patience - time.Since(a.here))
	}
	if a.mutex.options.Policy == Wait {
		limit(a.mutex.options.Wait - time.Since(a.here))
	}
	return wait
}

// requeue sends the job back to its queue. ahead is the number of places before it.
func (a *attempt) requeue(ahead int) error {
	back := &RequeueError{Ahead: ahead}
	switch {
	case a.mutex.closed():
		back.After = requeueSoon
	case a.job.Promoted:
		back.Parked, back.After = true, requeueParked+rand.N(requeueParked)
	default:
		back.After = min(time.Duration(max(ahead, 1))*requeueStep, requeueMax)
	}
	return a.within(back)
}

// later requeues a job without a place. For a job with NoRequeue it waits, and returns
// nil.
func (a *attempt) later(ctx context.Context) error {
	back := a.within(&RequeueError{After: requeueMax/2 + rand.N(requeueMax)})
	if !a.job.NoRequeue {
		return back
	}
	return backoff.Sleep(ctx, back.After)
}

// within brings the job back no later than the end of its Limit.
func (a *attempt) within(back *RequeueError) *RequeueError {
	if left, limited := a.left(); limited {
		back.After = min(back.After, max(left, requeueStep))
	}
	return back
}

// graceRequeued is the Grace of a job that its worker gives back to its queue: CrashGrace, because
// the queue has the job, and may have no free worker for it when it is due. With Replace and
// CancelRunning it is Options.Grace, because the job may be replaced.
func (a *attempt) graceRequeued() time.Duration {
	o := &a.mutex.options
	if o.Policy.Replaces() {
		return o.Grace
	}
	longest := 2 * requeueMax
	if a.job.Promoted {
		longest = 2 * requeueParked
	}
	grace := max(o.Grace, o.CrashGrace)
	return grace + min(longest, o.PlaceTTL-grace)
}

// keepTurn prolongs the place of a job that comes to a worker again, with that Grace, even after
// the job's context has ended.
func (a *attempt) keepTurn(ctx context.Context, grace time.Duration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleLimit)
	defer cancel()
	// If this fails, the place lasts as long as before.
	_, _ = a.prolong(ctx, grace)
}

// graceForRun sets the Grace of a job that begins now: from now on, other jobs of its key wait
// for CrashGrace if its worker dies. After an error they do not.
func (a *attempt) graceForRun(ctx context.Context) {
	if a.recovers || !a.placed {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	// A place that has ended must not be made again.
	if a.stands(ctx) {
		_, _ = a.prolong(ctx, a.mutex.options.CrashGrace)
	}
}

// prolong makes or prolongs the job's place, with that Grace.
func (a *attempt) prolong(ctx context.Context, grace time.Duration) (dibs.PlaceStatus, error) {
	o := &a.mutex.options
	s, err := a.mutex.client.Prolong(ctx, a.place, max(o.PlaceTTL, grace), &dibs.PlaceOptions{Grace: grace, Label: a.job.label()})
	a.placed = a.placed || err == nil
	return s, err
}

// noteWait records the time that the job has waited.
func (a *attempt) noteWait() {
	if a.since.IsZero() {
		a.since = time.Now()
	}
	a.waited = max(time.Since(a.since), 0)
}

// left returns the rest of the job's Limit, if it has one.
func (a *attempt) left() (time.Duration, bool) {
	limit := a.mutex.options.Limit
	if limit == 0 || a.since.IsZero() {
		return limit, limit > 0
	}
	return limit - time.Since(a.since), true
}

// pastLimit reports whether the job's Limit is over.
func (a *attempt) pastLimit() bool {
	left, limited := a.left()
	return limited && left <= 0
}

// afterLimit does what Options.AfterLimit says.
func (a *attempt) afterLimit(ctx context.Context, held error, fn func(context.Context) error) error {
	m := a.mutex
	switch m.options.AfterLimit {
	case RunAnyway:
		a.giveUp(ctx, a.place)
		m.report(ctx, a, EventRanAnyway, nil)
		return a.once(ctx, fn)
	case GiveUp:
		if err := m.options.GaveUp(ctx, a.job, a.waited); err != nil {
			a.failed(ctx, err)
			return a.refused(ctx, err)
		}
		a.giveUp(ctx, a.place)
		m.report(ctx, a, EventGaveUp, nil)
		return nil
	default:
		m.report(ctx, a, EventHeld, held)
		a.failed(ctx, held)
		return held
	}
}
