package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/pace"
	"github.com/dibs-go/dibs/proof/history"
)

// worker uses the keys, one after the other.
type worker struct {
	*rand.Rand
	session *session
	world   *world
}

func newWorker(l *session, n int) *worker {
	w := l.process.world
	return &worker{Rand: w.plan.among(4, uint64(l.process.number), uint64(l.number), uint64(n)), session: l, world: w}
}

// run works until ctx ends.
func (w *worker) run(ctx context.Context) {
	for w.rest(ctx, w.upTo(w.world.plan.ttl/4)) {
		k := w.world.plan.keys[w.IntN(len(w.world.plan.keys))]
		switch {
		case k.kind == Mutex, k.kind == Pool:
			w.lock(ctx, k)
		case k.kind == Once, k.kind == AtMostOnce:
			w.once(ctx, k)
		case k.queued:
			w.queue(ctx, k)
		case k.kind == Job:
			w.job(ctx, k)
		case k.kind == NoClient:
			w.noClient(ctx, k)
		}
	}
}

// rest waits for d, and while the process is stopped. It reports whether the worker should go
// on.
func (w *worker) rest(ctx context.Context, d time.Duration) bool {
	_ = pace.Sleep(ctx, d)
	return w.gate() && ctx.Err() == nil
}

// gate returns when the process is not stopped, after a moment in any case, so that the callers
// of one batch go on one after the other. It reports whether the process lives.
func (w *worker) gate() bool {
	moment := 1 + rand64(w.Rand, time.Microsecond)
	time.Sleep(moment)
	return w.session.gate(moment)
}

// upTo returns a duration below d, mostly a short one.
func (w *worker) upTo(d time.Duration) time.Duration {
	if w.IntN(3) > 0 {
		d /= 20
	}
	return 1 + rand64(w.Rand, d)
}

// chance is true n times out of 100.
func (w *worker) chance(n int) bool { return w.IntN(100) < n }

// impatience sometimes ends a context early.
func (w *worker) impatience(ctx context.Context) (context.Context, context.CancelFunc) {
	if w.chance(70) {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, w.upTo(2*w.world.plan.ttl))
}

// options returns how a key is acquired this time. try says that the caller does not wait.
func (w *worker) options(k key) (o *dibs.AcquireOptions, try bool) {
	o = &dibs.AcquireOptions{Permits: k.permits}
	switch {
	case w.chance(25):
		try = true
	case w.chance(50):
		o.Wait = w.upTo(4 * w.world.plan.ttl)
	}
	if w.chance(20) {
		o.TTL = w.world.plan.ttl / 2
	}
	if w.chance(10) {
		o.StopTimeout = w.world.plan.ttl / 8
	}
	o.Detach = w.chance(10)
	if k.kind == Pool {
		if w.chance(10) {
			o.Permits++
		}
		if w.chance(30) {
			o.Weight = 1 + w.IntN(o.Permits)
		}
	}
	return o, try
}

// lock acquires the key, works, and ends the lease in one of several ways.
func (w *worker) lock(ctx context.Context, k key) {
	asking, cancel := w.impatience(ctx)
	defer cancel()
	switch {
	case w.chance(5):
		_, _ = w.session.client.Held(asking, k.name)
		return
	case k.kind == Mutex && w.chance(10):
		w.several(asking)
		return
	}
	o, try := w.options(k)
	acquire := w.session.client.Acquire
	if try {
		acquire = w.session.client.TryAcquire
	}
	lease, err := acquire(asking, k.name, o)
	if alive := w.gate(); err != nil || !alive {
		return
	}
	k.permits, k.weight = o.Permits, o.Weight
	w.section(lease, k)
	w.settle(ctx, lease, k)
}

// several acquires all locks together.
func (w *worker) several(asking context.Context) {
	var names []string
	for _, k := range w.world.plan.keys {
		if k.kind == Mutex {
			names = append(names, k.name)
		}
	}
	all, err := w.session.client.AcquireAll(asking, names, nil)
	if alive := w.gate(); err != nil || !alive {
		return
	}
	for _, name := range names {
		w.section(all.Lease(name), key{name: name, kind: Mutex, permits: 1})
	}
	if w.gate() {
		_ = all.Release()
	}
}

// settle ends a lease, and reports whether it ended cleanly. If an end failed and the lease is
// still trusted, the worker goes on under it.
func (w *worker) settle(ctx context.Context, lease *dibs.Lease, k key) bool {
	if !w.gate() {
		return false
	}
	var failed bool
	switch n := w.IntN(100); {
	case n < 8:
		failed = lease.Abandon(ctx) != nil
	case n < 16:
		failed = lease.Undo(ctx) != nil
	default:
		return lease.Release() == nil
	}
	if failed && w.gate() && lease.Err() == nil {
		w.section(lease, k)
	}
	// It does nothing if the lease is settled by now. What was abandoned or undone did not end cleanly.
	return lease.Release() == nil && failed
}

// section is the work under a lease: it takes some time, and saves some progress.
func (w *worker) section(lease *dibs.Lease, k key) {
	here := history.Event{Key: k.name, Token: w.session.token(lease), Fence: lease.Fence(), Permits: k.permits, Weight: k.weight}
	w.note(history.Enter, here)
	ctx := lease.Context()
	for range w.IntN(4) {
		if !w.rest(ctx, w.upTo(w.world.plan.ttl)) {
			break
		}
		if w.chance(30) {
			_ = lease.Save(ctx, fmt.Append(nil, w.world.next()))
		}
		if !w.gate() || lease.Err() != nil {
			break
		}
	}
	if !w.gate() {
		return
	}
	here.Error = whyOver(lease)
	w.note(history.Leave, here)
}

// whyOver returns why the lease's section must end, or "".
func whyOver(lease *dibs.Lease) string {
	err := lease.Err()
	switch {
	case err == nil:
		return ""
	case errors.Is(err, dibs.ErrLost):
		return history.Lost
	}
	return err.Error()
}

// note writes an event of this session.
func (w *worker) note(kind history.Kind, e history.Event) {
	if w.session.isDead() {
		return
	}
	e.Kind = kind
	_ = w.session.writer.Happened(e) // memory takes everything
}
