package jobs

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/dibs-go/dibs"
)

// How long a job that goes back to its queue stays away, should nothing make it
// runnable earlier.
const (
	awayEach   = 50 * time.Millisecond // for each job before it,
	awayMost   = 2 * time.Second       // and at most so long
	awayParked = 30 * time.Second      // where its queue promotes it; up to twice as long
	awaySoon   = 100 * time.Millisecond
)

// errLimit says that the job's Limit is over.
var errLimit = errors.New("jobs: the limit of the wait is over")

// errClosed says that the Mutex was closed while a job waited in a worker.
var errClosed = errors.New("jobs: the Mutex is closed")

// queue takes the key in its turn and runs fn.
func (a *attempt) queue(ctx context.Context, fn func(context.Context) error) error {
	m := a.mutex
	if m.options.Policy == Replace {
		if newer, err := a.mark(ctx); err != nil {
			return a.refused(ctx, err)
		} else if newer {
			return a.replaced(ctx)
		}
	}
	lease, err := a.turn(ctx)
	if errors.Is(err, errLimit) {
		return a.otherwise(ctx, err, fn)
	}
	if err != nil {
		if _, back := errors.AsType[*RequeueError](err); !back && ctx.Err() != nil && a.job.last(err) {
			a.giveUp(ctx, a.place) // the job is cancelled
		}
		return a.refused(ctx, err)
	}
	if m.options.Policy == Replace {
		if newer, err := a.outdated(ctx); err != nil {
			_ = a.end(ctx, lease.Undo)
			return a.refused(ctx, err)
		} else if newer {
			_ = lease.Release() // the client goes on in the background if this fails
			return a.replaced(ctx)
		}
	}
	return a.run(lease, fn)
}

// turn takes the key when the job's turn has come. Its error is a *RequeueError when
// the job is to wait in its queue; errLimit wraps the dibs.ErrHeld of a job whose Limit
// is over.
func (a *attempt) turn(ctx context.Context) (*dibs.Lease, error) {
	m := a.mutex
	o := a.acquire()
	o.NoWait = true
	lease, err := m.client.Redeem(ctx, a.place, o)
	if err == nil {
		if a.tries > 1 {
			a.waits()
		}
		return lease, nil
	}
	if !errors.Is(err, dibs.ErrHeld) {
		return nil, err
	}
	if a.waits(); a.late() {
		return nil, errors.Join(errLimit, err)
	}
	// From now on the others of the key wait for the job as for one that a worker has.
	s, err := a.stand(ctx, m.options.Recovery)
	if err != nil {
		return nil, err
	}
	leave, ok := a.enter()
	if !ok {
		return nil, a.goBack(s.Ahead)
	}
	defer leave()
	lease, err = a.wait(ctx)
	a.waits()
	switch {
	case errors.Is(err, errClosed):
		return nil, a.goBack(s.Ahead)
	case !errors.Is(err, dibs.ErrHeld):
		return lease, err
	case a.late():
		return nil, errors.Join(errLimit, err)
	}
	return nil, a.goBack(s.Ahead)
}

// unheld reports whether an ErrHeld says that nobody holds the key: places keep the
// caller from it.
func unheld(err error) bool {
	held, ok := errors.AsType[*dibs.HeldError](err)
	return ok && held.Left == 0
}

// enter reports whether the job may wait for its turn in the worker. leave ends that.
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
	return m.rooms.enter(a.job.Pool)
}

// wait waits for the job's turn in the worker, as long as that may be.
func (a *attempt) wait(ctx context.Context) (*dibs.Lease, error) {
	m := a.mutex
	m.count(func(s *Stats) { s.Waiting++ })
	defer m.count(func(s *Stats) { s.Waiting-- })
	o := a.acquire()
	o.Wait = a.patience()
	a.over() // an earlier wait led to no lease
	// The lease's context derives from this one, which over ends.
	waiting, end := context.WithCancelCause(ctx)
	a.waiting = end
	if a.job.NoRequeue {
		return m.client.Redeem(waiting, a.place, o)
	}
	stop := context.AfterFunc(m.life, func() { end(errClosed) })
	lease, err := m.client.Redeem(waiting, a.place, o)
	if !stop() && err == nil {
		// The key was granted at that very moment; the lease's context ends.
		_ = a.end(ctx, lease.Undo)
		return nil, errClosed
	}
	return lease, err
}

// patience returns how long the job may wait in the worker; 0 is without limit.
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

// goBack sends the job back to its queue. ahead is how many places come before it.
func (a *attempt) goBack(ahead int) error {
	back := &RequeueError{Ahead: ahead}
	switch {
	case a.mutex.closed():
		back.After = awaySoon
	case a.job.Promoted:
		back.Parked, back.After = true, awayParked+rand.N(awayParked)
	default:
		back.After = min(max(time.Duration(ahead), 1)*awayEach, awayMost)
	}
	return a.within(back)
}

// later has a job come back that cannot have the key yet and has no place in its queue.
// A job with NoRequeue has waited when later returns nil.
func (a *attempt) later(ctx context.Context) error {
	back := a.within(&RequeueError{After: awayMost/2 + rand.N(awayMost)})
	if !a.job.NoRequeue {
		return back
	}
	timer := time.NewTimer(back.After)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return context.Cause(ctx)
}

// within has the job come back no later than its Limit is over.
func (a *attempt) within(back *RequeueError) *RequeueError {
	if left, limited := a.left(); limited {
		back.After = min(back.After, max(left, awayEach))
	}
	return back
}

// stand makes the job's place stand, in the way for hold at most once its turn has come.
func (a *attempt) stand(ctx context.Context, hold time.Duration) (dibs.PlaceStatus, error) {
	o := &a.mutex.options
	s, err := a.mutex.client.Prolong(ctx, a.place, max(o.PlaceTTL, hold), &dibs.AcquireOptions{Hold: hold, Label: a.acquire().Label})
	a.placed = a.placed || err == nil
	return s, err
}

// waits notes that the job waits for its turn, and for how long it has by now.
func (a *attempt) waits() {
	if a.since.IsZero() {
		a.since = time.Now()
	}
	a.waited = max(time.Since(a.since), 0)
}

// left returns how much of the job's Limit is left, if there is one.
func (a *attempt) left() (time.Duration, bool) {
	limit := a.mutex.options.Limit
	if limit == 0 || a.since.IsZero() {
		return limit, limit > 0
	}
	return limit - time.Since(a.since), true
}

// late reports whether the job's Limit is over.
func (a *attempt) late() bool {
	left, limited := a.left()
	return limited && left <= 0
}

// otherwise does what was chosen for a job whose Limit is over.
func (a *attempt) otherwise(ctx context.Context, held error, fn func(context.Context) error) error {
	m := a.mutex
	switch m.options.AfterLimit {
	case RunAnyway:
		a.giveUp(ctx, a.place)
		m.tell(ctx, a, EventRanAnyway, nil)
		return a.once(ctx, fn)
	case GiveUp:
		if err := m.options.GaveUp(ctx, a.job, a.waited); err != nil {
			return a.refused(ctx, err)
		}
		a.giveUp(ctx, a.place)
		m.tell(ctx, a, EventGaveUp, nil)
		return nil
	default:
		m.tell(ctx, a, EventHeld, held)
		if a.job.last(held) || m.options.Failed == LetPass {
			a.giveUp(ctx, a.place)
		} else {
			// If this fails, the place stands for Recovery.
			_, _ = a.stand(ctx, a.absent(a.job.again(held)))
		}
		return held
	}
}
