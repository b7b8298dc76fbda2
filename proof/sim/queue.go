package sim

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/proof/workload"
)

// queued is a job in a queue outside of dibs. The queue gives it to a worker, and again if the
// job failed, was requeued, or its worker was killed.
type queued struct {
	job jobs.Job
	due time.Duration
}

// newMutex returns the job mutex of a session. No place outlasts the time after the faults.
func newMutex(l *session) *jobs.Mutex {
	ttl := l.process.world.plan.ttl
	m, err := jobs.New(l.client, &jobs.Options{
		Grace: min(ttl/2, placeStands), CrashGrace: min(2*ttl, placeStands), PlaceTTL: placeStands,
		Wait: ttl, Ahead: 1, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err) // the options are wrong
	}
	return m
}

// queue enqueues a job, or runs one.
func (w *worker) queue(ctx context.Context, k workload.Key) {
	m := w.session.mutex
	calm := w.Calm()
	if !calm && w.Chance(20) {
		asking, cancel := w.Impatience(ctx)
		defer cancel()
		ticket, err := m.Enqueue(asking, jobs.Job{Key: k.Name})
		if w.Gate(); err == nil {
			w.world.push(queued{job: jobs.Job{Kind: "sim", ID: w.Next(), Key: k.Name, Ticket: ticket}})
		}
		return
	}
	q, ok := w.world.pop(k.Name)
	switch {
	case !ok:
		return
	case calm || w.Chance(5):
		w.cancel(ctx, q)
		return
	}
	q.job.Tries++
	err := m.Run(ctx, q.job, func(ctx context.Context) error { return w.work(ctx, k) })
	switch {
	case err == nil && !w.Chance(3):
		return
	case w.Calm() && !w.session.isDead():
		w.cancel(ctx, q)
		return
	}
	q.due = w.world.now() + w.UpTo(w.TTL) // it failed, or is delivered twice
	if again, ok := errors.AsType[*jobs.RequeueError](err); ok {
		q.due = w.world.now() + again.After
	}
	w.world.push(q)
}

// cancel gives a job's place back. A process that is being stopped may be too late.
func (w *worker) cancel(ctx context.Context, q queued) {
	w.session.mutex.Cancel(context.WithoutCancel(ctx), q.job.Ticket)
	if ctx.Err() != nil {
		w.Places.Keep()
	}
}

// work is the work of a job.
func (w *worker) work(ctx context.Context, k workload.Key) error {
	r, ok := jobs.FromContext(ctx)
	if !ok || r.Lease == nil {
		panic("sim: a job ran without a lease")
	}
	if !w.Gate() {
		return workload.ErrWork
	}
	w.Section(r.Lease, k)
	if !w.Gate() || w.Chance(15) {
		return workload.ErrWork
	}
	return nil
}

// push puts a job into the queue.
func (w *world) push(q queued) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.jobs = append(w.jobs, q)
}

// pop takes the first job of the key that is due, or any after the faults.
func (w *world) pop(key string) (q queued, ok bool) {
	now := w.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, q := range w.jobs {
		if q.job.Key == key && (q.due <= now || w.calm) {
			w.jobs = append(w.jobs[:i:i], w.jobs[i+1:]...)
			return q, true
		}
	}
	return q, false
}
