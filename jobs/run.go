package jobs

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/store"
)

// Run describes a running job.
type Run struct {
	Job Job
	// Lease is the lease of the job's key, or nil when the job runs without it.
	Lease *dibs.Lease
	// Tries is how often workers got the job, and Waited how long it waited for its turn,
	// if known.
	Tries  int
	Waited time.Duration
	// Abandoned is how many holders of the key in a row crashed, or failed and will be
	// tried again. This job may be one of them. Their work may be half done; dibs.Step
	// skips the steps that this job has done.
	Abandoned int
}

type runKey struct{}

// FromContext returns the Run of the job that runs with ctx.
func FromContext(ctx context.Context) (*Run, bool) {
	r, ok := ctx.Value(runKey{}).(*Run)
	return r, ok
}

// jobContext returns the context of the running job.
func (a *attempt) jobContext(ctx context.Context) context.Context {
	r := &Run{Job: a.job, Lease: a.lease, Tries: a.tries, Waited: a.waited}
	if a.lease != nil {
		r.Abandoned = a.lease.Attempt() - 1
	}
	return dibs.WithRun(context.WithValue(ctx, runKey{}, r), a.job.onceKey())
}

// begin reports that the job runs. The returned function ends that.
func (a *attempt) begin(ctx context.Context) (end func()) {
	m := a.mutex
	a.began = time.Now()
	m.report(ctx, a, EventAcquired, nil)
	m.count(func(s *Stats) { s.Running++ })
	return func() { m.count(func(s *Stats) { s.Running-- }) }
}

// errNotReturned: fn did not return.
var errNotReturned = errors.New("jobs: the job panicked, or called runtime.Goexit")

// run runs fn under the lease and settles the lease however fn ends.
func (a *attempt) run(lease *dibs.Lease, fn func(context.Context) error) (err error) {
	a.lease = lease
	end := a.begin(lease.Context())
	err = errNotReturned
	defer func() {
		end()
		err = a.settle(lease, err)
	}()
	return a.once(lease.Context(), fn)
}

// settle ends the lease of a job and returns the job's result.
func (a *attempt) settle(lease *dibs.Lease, err error) error {
	m := a.mutex
	ctx := context.WithoutCancel(lease.Context())
	_, replaced := errors.AsType[*ReplacedError](context.Cause(lease.Context()))
	var settled error
	if over := replaced || err == nil || a.job.last(err) || m.options.Failed == LetPass || !a.placed; over {
		if settled = lease.Release(); errors.Is(settled, dibs.ErrLost) && a.placed {
			a.giveUp(ctx, a.place) // without its lease the place counts again
		}
	} else {
		settled = a.keep(ctx, lease, a.job.again(err))
	}
	switch lost := errors.Is(settled, dibs.ErrLost); {
	case lost && err == nil:
		// The job is done, although another job may have run at the same time. A
		// second run would not help.
		m.report(ctx, a, EventLost, nil)
	case lost:
		m.report(ctx, a, EventLost, err)
		if !errors.Is(err, dibs.ErrLost) {
			err = errors.Join(err, dibs.ErrLost)
		}
	case err == nil:
		m.report(ctx, a, EventSucceeded, nil)
	case replaced:
		m.report(ctx, a, EventReplaced, err)
		return nil
	default:
		m.report(ctx, a, EventFailed, err)
	}
	return err
}

// keep ends the lease and keeps the place, so that no job passes until this one is tried
// again or CrashGrace is over.
func (a *attempt) keep(ctx context.Context, lease *dibs.Lease, again time.Duration) error {
	err := a.end(ctx, lease.Abandon)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleLimit)
	defer cancel()
	if errors.Is(err, dibs.ErrLost) && !a.stands(ctx) {
		// Another delivery, or a transaction whose commit was not answered, has done the
		// job. A new place would block the key, and no job would use it.
		return err
	}
	// If this fails, the place lasts as long as before.
	_, _ = a.prolong(ctx, a.graceFor(again))
	return err
}

// stands reports whether the attempt's place exists.
func (a *attempt) stands(ctx context.Context) bool {
	s, err := a.mutex.client.PlaceStatus(ctx, a.place)
	return err == nil && s.Exists
}

// graceFor is the Grace of a job that failed and is tried again after that time. With
// Replace and CancelRunning, a newer job need not wait.
func (a *attempt) graceFor(again time.Duration) time.Duration {
	if a.mutex.options.Policy.Replaces() {
		return store.MinDuration
	}
	crashGrace := a.mutex.options.CrashGrace
	return crashGrace + min(again, math.MaxInt64-crashGrace)
}

// end ends a lease by the call. It continues in the background while the store does not
// answer, because the client renews the lease until it is ended.
func (a *attempt) end(ctx context.Context, by func(context.Context) error) error {
	try := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleLimit)
		defer cancel()
		return by(ctx)
	}
	err := try()
	if unended(err) {
		go func() {
			for again := err; unended(again); again = try() {
				time.Sleep(time.Second)
			}
		}()
	}
	return err
}

// unended reports whether the lease may still exist.
func unended(err error) bool { return err != nil && !errors.Is(err, dibs.ErrLost) }

// Commit runs fn in a transaction, and commits it together with the end of the job's key.
// So fn's writes exist only if the job had the key until then. The transaction can also
// complete the job in its queue's table. fn finds the transaction in its context, with
// the function of the store that made t. After a conflict fn runs again in a new
// transaction, at most dibs.MaxConflicts times in all.
//
// Call it last inside the function of Mutex.Run, and not with Options.Once. It returns
// fn's error, dibs.ErrNoLease when the job runs without its key, and the errors of
// dibs.Lease.CompleteIn.
func Commit(ctx context.Context, t dibs.Transactor, fn func(context.Context) error) error {
	if fn == nil {
		return errors.New("jobs: Commit was given no function; pass the function that runs in the transaction")
	}
	r, ok := FromContext(ctx)
	if !ok || r.Lease == nil {
		return dibs.ErrNoLease
	}
	for try := 1; ; try++ {
		again, err := commit(ctx, r.Lease, t, fn)
		if !again || try == dibs.MaxConflicts || ctx.Err() != nil {
			return err
		}
		_ = conflictPause.Wait(ctx, try)
	}
}

// conflictPause is the pause after a conflict.
var conflictPause = backoff.Exponential{Min: 10 * time.Millisecond, Max: 50 * time.Millisecond}

// commit runs fn in one transaction. again: a conflict rolled it back.
func commit(ctx context.Context, lease *dibs.Lease, t dibs.Transactor, fn func(context.Context) error) (again bool, err error) {
	tx, err := t.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer tx.Rollback() // even after a panic or Goexit
	if err := fn(store.WithTransaction(ctx, tx)); err != nil {
		return tx.Conflicted(err), err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleLimit)
	defer cancel()
	err = lease.ReleaseIn(ctx, tx)
	return errors.Is(err, dibs.ErrRolledBack) && tx.Conflicted(err), err
}
