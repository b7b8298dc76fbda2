package sim

import (
	"context"
	"strconv"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
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
		Client: l.client, Store: l.store, Recorder: l.store.(*sessionStore).recorded,
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
	if !w.session.isDead() {
		_ = w.session.writer.Happened(e) // memory takes everything
	}
}

// Crash does nothing, because a process is killed from outside, at any moment.
func (w *worker) Crash(string) {}

// Freeze does nothing, because a process is stopped from outside, at any moment.
func (w *worker) Freeze(string) bool { return false }

// Write does nothing: fences are checked by the history.
func (w *worker) Write(string, uint64) {}

// Lost does nothing: the history has it.
func (w *worker) Lost() {}
