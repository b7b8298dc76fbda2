package jobs

import (
	"context"
	"errors"
	"math/rand/v2"

	"github.com/dibs-go/dibs"
)

// takeTotal takes one of the permits that the jobs of all keys share. The job has no place
// for it, because a permit would lie idle until a requeued job comes back to its place. It
// waits under the rules of the job's own key, and returns the errors of turn. If the permit
// is lost, it calls cancel. end gives the permit back.
func (a *attempt) takeTotal(lease *dibs.Lease, cancel context.CancelCauseFunc) (end func(), err error) {
	m := a.mutex
	total, err := m.client.TryAcquire(lease.Context(), m.options.TotalKey, a.totalOptions())
	if errors.Is(err, dibs.ErrHeld) {
		if a.noteWait(); a.pastLimit() {
			return nil, errors.Join(errLimit, err)
		}
		total, err = a.waitForTotal(lease.Context())
		if a.noteWait(); errors.Is(err, dibs.ErrHeld) && a.pastLimit() {
			return nil, errors.Join(errLimit, err)
		}
	}
	if errors.Is(err, dibs.ErrHeld) || errors.Is(err, errClosed) {
		// A parked job would come back when a job of its own key has ended.
		return nil, a.within(&RequeueError{After: requeueMax/2 + rand.N(requeueMax)})
	}
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(total.Context(), func() { cancel(total.Err()) })
	return func() {
		stop()
		_ = total.Release() // after an error the client continues in the background
	}, nil
}

// totalOptions returns the options of the claim of the shared permit.
func (a *attempt) totalOptions() *dibs.AcquireOptions {
	o := &a.mutex.options
	return &dibs.AcquireOptions{
		TTL: o.TTL, MaxLifetime: o.MaxLifetime, Permits: o.Total, Label: a.job.label(),
		Detach: true, // it must last until the job's own lease has ended
	}
}

// waitForTotal waits for a permit in the worker, if it has room.
func (a *attempt) waitForTotal(ctx context.Context) (*dibs.Lease, error) {
	m := a.mutex
	leave, ok := a.enter()
	if !ok {
		return nil, dibs.ErrHeld
	}
	defer leave()
	m.count(func(s *Stats) { s.Waiting++ })
	defer m.count(func(s *Stats) { s.Waiting-- })
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	if !a.job.NoRequeue {
		defer context.AfterFunc(m.closing, func() { end(errClosed) })()
	}
	o := a.totalOptions()
	o.Wait = a.patience()
	return m.client.Acquire(ctx, m.options.TotalKey, o)
}

// giveBack ends the lease of a job that did not run, and keeps its place.
func (a *attempt) giveBack(ctx context.Context, lease *dibs.Lease) {
	_ = a.end(ctx, lease.Undo)
	a.keepTurn(ctx, a.graceRequeued())
}
