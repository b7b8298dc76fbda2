package sim

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/proof/history"
	"github.com/dibs-go/dibs/proof/workload"
)

// worker uses the keys, one after the other.
type worker struct {
	*workload.Actor
	session *session
	world   *world
}

func newWorker(l *session, n int) *worker {
	p := l.process.world.plan
	w := &worker{session: l, world: l.process.world}
	w.Actor = &workload.Actor{
		Rand: p.among(4, uint64(l.process.number), uint64(l.number), uint64(n)), Program: w,
		Client: l.client, Store: l.store,
		TTL: p.ttl, PlaceTTL: min(p.ttl*2, placeStands), Timeout: p.timeout, Pushes: p.pushes,
		Places: &w.world.places,
	}
	w.Step = func() time.Duration { return w.UpTo(p.ttl) }
	return w
}

// placeStands is the longest time that a reserved place stands.
const placeStands = time.Second

// run works until ctx ends.
func (w *worker) run(ctx context.Context) {
	for w.Rest(ctx, w.UpTo(w.TTL/4)) {
		k := w.world.plan.keys[w.IntN(len(w.world.plan.keys))]
		switch {
		case k.queued:
			w.queue(ctx, k.Key)
		case k.Kind == workload.Mutex && w.Chance(10):
			w.Several(ctx, w.world.plan.locks())
		default:
			w.Use(ctx, k.Key)
		}
	}
}

// Rest implements workload.Program.
func (w *worker) Rest(ctx context.Context, d time.Duration) bool {
	_ = backoff.Sleep(ctx, d)
	return w.Gate() && ctx.Err() == nil
}

// Gate returns when the process is not stopped, after a moment in any case, so that the callers
// of one batch continue one after the other. It reports whether the process lives.
func (w *worker) Gate() bool {
	moment := 1 + rand64(w.Rand, time.Microsecond)
	time.Sleep(moment)
	return w.session.gate(moment)
}

// Calm implements workload.Program.
func (w *worker) Calm() bool { return w.world.healed() }

// Next implements workload.Program.
func (w *worker) Next() string { return strconv.FormatUint(w.world.next(), 10) }

// Note implements workload.Program.
func (w *worker) Note(e history.Event) {
	_ = w.session.writer.Happened(e) // memory takes everything
}

// Crash does nothing, because a process is killed from outside, at any moment.
func (w *worker) Crash(string) {}

// Freeze does nothing, because a process is stopped from outside, at any moment.
func (w *worker) Freeze(string) bool { return false }

// Write does nothing: fences are checked by the history.
func (w *worker) Write(string, uint64) {}

// Lost does nothing: the history has it.
func (w *worker) Lost() {}

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
