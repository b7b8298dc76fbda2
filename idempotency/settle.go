package idempotency

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/internal/memory"
	"github.com/dibs-go/dibs/store"
)

// A settlement is how a run's key is settled.
type settlement struct {
	outcome   store.Outcome
	record    []byte        // with store.Keep
	retention time.Duration // with store.Keep
}

// conclude settles the key after the handler has returned, and sends the answer.
func (r *run) conclude(whole bool) {
	failure := Failure(r.ctx.failure.Load())
	switch {
	case failure != noFailure:
		r.concludeFailure(failure)
	case !whole:
		r.send(r.settle(settlement{outcome: store.Abandon}), EventInterrupted)
	default:
		r.send(r.settle(r.settlement()), EventRan)
	}
}

// concludeFailure settles a run whose origin gave no answer, and says so.
func (r *run) concludeFailure(f Failure) {
	kind, how := EventInterrupted, store.Abandon
	if f == Unreached {
		kind = EventUnreached
		if !r.answer.streaming {
			how = store.Release
		}
	}
	lost := r.settle(settlement{outcome: how})
	switch {
	case r.answer.streaming:
		r.breakOff(kind)
	case lost:
		r.send(true, kind)
	default:
		r.refuse(kind, FailureProblem(f))
	}
}

// settlement returns how a run with a whole answer is settled.
func (r *run) settlement() settlement {
	c := r.m.options.control(r.answer.controls)
	if !c.asked {
		c.maxAge = cmp.Or(r.req.retention, c.maxAge)
	}
	if !r.keeps(c) {
		return settlement{outcome: store.Release}
	}
	w := r.answer
	if w.oversize || r.tooLarge {
		return r.tombstone()
	}
	connection := w.header["Connection"]
	a := Answer{
		Status:  w.status,
		Header:  r.m.options.stored(w.header, connection),
		Trailer: r.m.options.stored(w.trailer, connection),
		Body:    w.body,
		trace:   r.m.options.Trace(r.req.Context()),
		asked:   r.req.whole,
	}
	if kept := w.result.Body; kept != nil {
		a.Body, a.Header["Content-Type"] = kept, []string{"application/json"}
	}
	r.m.options.Redact(r.req.Context(), &a)
	message := a.message()
	if a.NotKept || len(message)-len(a.Body) > maxHead {
		return r.tombstone()
	}
	return settlement{store.Keep, r.record(message, c.maxAge), c.maxAge}
}

// record returns the record of a message.
func (r *run) record(message []byte, retention time.Duration) []byte {
	return r.m.options.KeyRing.Encrypt(r.m.client.Key(r.req.key), r.req.fingerprint, retention, deflate(message))
}

// tombstone returns how a run is settled whose answer is too long to be kept.
func (r *run) tombstone() settlement {
	if r.m.options.OnOversize == Rerun {
		return settlement{outcome: store.Release}
	}
	a := Answer{Status: r.answer.status, NotKept: true, trace: r.m.options.Trace(r.req.Context()), asked: r.req.whole}
	retention := cmp.Or(r.req.retention, r.m.options.Retention)
	return settlement{store.Keep, r.record(a.message(), retention), retention}
}

// keeps reports whether the answer is kept.
func (r *run) keeps(c control) bool {
	o, status := &r.m.options, r.answer.result.Status
	switch {
	case c.noStore || status < 200:
		return false
	case o.keepsStatus(status) && len(r.answer.header["Retry-After"]) == 0:
		return true
	}
	// The application may keep what the status alone would not, except a failure of the server,
	// because a retry may succeed.
	return c.asked && (status < 500 || o.keepsStatus(status))
}

// settle settles the key and wakes waiters. It reports whether the lease was lost. If the store
// does not answer, settle continues in the background.
func (r *run) settle(how settlement) (lost bool) {
	m := r.m
	r.settled = true
	asked := time.Now()
	err := m.apply(how, r.lease)
	r.event.Settling += time.Since(asked)
	switch {
	case err == nil:
		r.kept(how)
		m.duplicates.leave(r.req.key, r.original, how.record)
		return false
	case errors.Is(err, dibs.ErrLost):
		m.duplicates.leave(r.req.key, r.original, nil)
		return true
	case how.outcome == store.Release: // the client releases it in the background
		m.duplicates.leave(r.req.key, r.original, nil)
		return false
	}
	r.event.Err = err
	if errors.Is(err, dibs.ErrTooLarge) && !r.tooLarge {
		// The store will refuse this record every time.
		r.tooLarge = true
		return r.settle(r.tombstone())
	}
	r.settleLater(how)
	return false
}

// kept notes that the store did what a settlement says.
func (r *run) kept(how settlement) {
	if how.outcome == store.Keep {
		r.event.Stored = true
		r.m.memory.Read(len(how.record))
	}
}

// settlePause is the pause before settleLater asks the store again.
var settlePause = backoff.Exponential{Min: 50 * time.Millisecond, Max: time.Second}

// settleLater settles in the background, until the lease is lost.
func (r *run) settleLater(how settlement) {
	m, key, original, lease, keep := r.m, r.req.key, r.original, r.lease, how.outcome == store.Keep
	room := memory.Open(m.memory.Memory)
	if keep {
		room.Owe(int64(len(how.record))) // stays in memory
		r.event.StoreFailed = true
	}
	giveUp := time.Now().Add(m.options.HandlerLimit)
	m.unsettled.Add(1)
	go func() {
		defer m.unsettled.Add(-1)
		defer room.Close()
		for failed := 1; ; failed++ {
			time.Sleep(settlePause.Pause(failed))
			if keep && time.Now().After(giveUp) {
				// The store answers and takes no record, and the key must not be held forever.
				keep, how = false, settlement{outcome: store.Abandon}
				room.Close()
			}
			err := m.apply(how, lease)
			if err != nil && !errors.Is(err, dibs.ErrLost) {
				continue
			}
			if keep && err != nil {
				how.record = nil // which the store does not have
			}
			m.duplicates.leave(key, original, how.record)
			return
		}
	}()
}

// apply settles the lease.
func (m *Middleware) apply(how settlement, lease *dibs.Lease) error {
	limit, stop := m.withStoreTimeout(context.Background())
	defer stop()
	switch how.outcome {
	case store.Keep:
		return lease.Complete(limit, how.record, how.retention)
	case store.Abandon:
		return lease.Abandon(limit)
	case store.Undo:
		return lease.Undo(limit)
	}
	return lease.Release()
}

// send sends an answer that was held back, or ends one that streamed. If the lease was lost, the
// answer must not reach the client.
func (r *run) send(lost bool, kind EventKind) {
	r.event.Status = r.answer.status
	switch {
	case !lost:
		if !r.answer.streaming {
			r.req.body.remove()
			r.slot.Close()
			r.room.Keep(int64(len(r.answer.body)))
			r.answer.send()
		}
		r.observe(kind)
	case r.answer.streaming:
		r.breakOff(EventLost)
	default:
		r.event.Err = dibs.ErrLost
		r.refuse(EventLost, problemLost)
	}
}

// breakOff ends an answer that was sent in part, so that the client does not take the part for the
// whole.
func (r *run) breakOff(kind EventKind) {
	r.event.Status = 0
	r.observe(kind)
	panic(http.ErrAbortHandler)
}
