package jobs

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"time"

	"github.com/dibs-go/dibs"
)

// Run is what a job can know while it runs.
type Run struct {
	Job Job
	// Lease is that of the job's key; nil when the job runs without it.
	Lease *dibs.Lease
	// Tries is how often a worker had the job, and Waited how long the job waited for
	// its turn, as far as is known.
	Tries  int
	Waited time.Duration
	// Abandoned is how many holders of the key in a row crashed, or failed and are
	// tried again, before this one, which may have been the same job: what they began
	// may be half done. dibs.Step skips what this job had done by then.
	Abandoned int
}

type runKey struct{}

// FromContext returns what there is to know of the job that runs with ctx.
func FromContext(ctx context.Context) (*Run, bool) {
	r, ok := ctx.Value(runKey{}).(*Run)
	return r, ok
}

// inside returns the context that the job runs with.
func (a *attempt) inside(ctx context.Context) context.Context {
	r := &Run{Job: a.job, Lease: a.lease, Tries: a.tries, Waited: a.waited}
	if a.lease != nil {
		r.Abandoned = a.lease.Attempt() - 1
	}
	return dibs.WithRun(context.WithValue(ctx, runKey{}, r), a.job.onceKey())
}

// begin notes that the job runs; what it returns, that it does no more.
func (a *attempt) begin(ctx context.Context) (end func()) {
	m := a.mutex
	a.began = time.Now()
	m.tell(ctx, a, EventAcquired, nil)
	m.count(func(s *Stats) { s.Running++ })
	return func() { m.count(func(s *Stats) { s.Running-- }) }
}

// errUnwound: fn did not return.
var errUnwound = errors.New("jobs: the job panicked, or ended its goroutine")

// run runs fn under the lease and settles it on every way out.
func (a *attempt) run(lease *dibs.Lease, fn func(context.Context) error) (err error) {
	a.lease = lease
	end := a.begin(lease.Context())
	err = errUnwound
	defer func() {
		end()
		err = a.settle(lease, err)
	}()
	return a.once(lease.Context(), fn)
}

// settle ends the lease of a job that ended with that error, and returns what is
// to become of the job.
func (a *attempt) settle(lease *dibs.Lease, err error) error {
	m := a.mutex
	ctx := context.WithoutCancel(lease.Context())
	var settled error
	if over := err == nil || a.job.last(err) || m.options.Failed == LetPass || !a.placed; over {
		if settled = lease.Release(); errors.Is(settled, dibs.ErrLost) && a.placed {
			a.giveUp(ctx, a.place) // it stands again
		}
	} else {
		settled = a.keep(ctx, lease, a.job.again(err))
	}
	switch lost := errors.Is(settled, dibs.ErrLost); {
	case lost && err == nil:
		// What the job did is done, though it may not have been alone at last. To do
		// it again would not mend that.
		m.tell(ctx, a, EventLost, nil)
	case lost:
		m.tell(ctx, a, EventLost, err)
		if !errors.Is(err, dibs.ErrLost) {
			err = errors.Join(err, dibs.ErrLost)
		}
	case err == nil:
		m.tell(ctx, a, EventSucceeded, nil)
	default:
		m.tell(ctx, a, EventFailed, err)
	}
	return err
}

// keep ends the lease and keeps the place: no job passes until the job is there
// again, after that time, or Recovery is over; but see absent.
func (a *attempt) keep(ctx context.Context, lease *dibs.Lease, again time.Duration) error {
	err := a.end(ctx, lease.Abandon)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settlePatience)
	defer cancel()
	if errors.Is(err, dibs.ErrLost) && !a.stands(ctx) {
		// The job was done by another delivery, or in a transaction whose commit was not
		// confirmed. A new place would be in the way, and no job would come for it.
		return err
	}
	// If this fails, the place stands for as long as it did.
	_, _ = a.stand(ctx, a.absent(again))
	return err
}

// stands reports whether the attempt's place stands.
func (a *attempt) stands(ctx context.Context) bool {
	s, err := a.mutex.client.PlaceStatus(ctx, a.place, nil)
	return err == nil && s.Exists
}

// absent is how long the others of its key wait for a job that failed and is tried again
// after that time. One that replaces it does not.
func (a *attempt) absent(again time.Duration) time.Duration {
	if a.mutex.options.Policy == Replace {
		return dibs.MinDuration
	}
	recovery := a.mutex.options.Recovery
	return recovery + min(again, math.MaxInt64-recovery)
}

// end ends a lease by a call that does it, and goes on in the background while the store
// does not answer: the client renews a lease until it is ended, or the client is
// closed.
func (a *attempt) end(ctx context.Context, by func(context.Context) error) error {
	try := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settlePatience)
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

// unended reports whether a lease stands that was to be ended.
func unended(err error) bool { return err != nil && !errors.Is(err, dibs.ErrLost) }

// Commit runs fn in a transaction, and commits that together with the end of the
// job's key: what fn did is there if and only if the key was the job's until then.
// What else the transaction does, such as noting in the queue's own table that the job
// is completed, is there with it. fn finds the transaction in its context, with what
// the store that made t has for that. When the transaction fell victim to a conflict
// with another one, fn is called again in a new one, up to dibs.MaxConflicts times in
// all.
//
// It is called inside of what Mutex.Run runs, as the last thing, and not with
// Options.Once. It returns what fn returned, dibs.ErrNoLease when the job runs without
// its key, and the errors of dibs.Lease.CompleteIn.
func Commit(ctx context.Context, t dibs.Transactor, fn func(context.Context) error) error {
	r, ok := FromContext(ctx)
	if !ok || r.Lease == nil {
		return dibs.ErrNoLease
	}
	for try := 1; ; try++ {
		again, err := commit(ctx, r.Lease, t, fn)
		if !again || try == dibs.MaxConflicts || ctx.Err() != nil {
			return err
		}
		// Transactions that were in conflict must not meet again.
		timer := time.NewTimer(rand.N(time.Duration(try) * 10 * time.Millisecond))
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// commit runs fn in one transaction. again says that it was rolled back because of a
// conflict.
func commit(ctx context.Context, lease *dibs.Lease, t dibs.Transactor, fn func(context.Context) error) (again bool, err error) {
	tx, err := t.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer tx.Rollback() // on every way out, a panic and Goexit among them
	if err := fn(dibs.WithTransaction(ctx, tx)); err != nil {
		return tx.Conflicted(err), err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settlePatience)
	defer cancel()
	err = lease.ReleaseIn(ctx, tx)
	return errors.Is(err, dibs.ErrRolledBack) && tx.Conflicted(err), err
}
