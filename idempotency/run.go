package idempotency

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
)

// Failure is why a handler that stands for another server has no answer to give; see Fail.
type Failure uint8

const (
	noFailure Failure = iota
	// Unreached says that the origin was not reached and did nothing. The client gets 502, and the
	// key is free.
	Unreached
	// HungUp says that the origin hung up after the request was sent. The client gets
	// 502. Options.OnCrash says whether a retry runs again or the outcome is unknown.
	HungUp
	// TimedOut says that the origin did not answer in time. The client gets 504; otherwise as
	// HungUp.
	TimedOut
	// BrokeOff says that the origin's answer broke off. The client gets 502, or a broken transfer
	// if part of the answer was sent; otherwise as HungUp.
	BrokeOff
)

// Fail says that the handler of a guarded request got no answer from the server that it stands for.
// ctx is the request's context. The handler must then return without writing more. The Middleware
// drops what the handler wrote, answers with a problem document, and settles the key. The first
// call counts.
//
// Fail returns false and does nothing if ctx is not of a guarded request. The handler then answers
// itself, for instance with WriteProblem.
func Fail(ctx context.Context, f Failure) bool {
	c, ok := ctx.Value(runContextKey{}).(*runContext)
	if !ok {
		return false
	}
	if f == noFailure || f > BrokeOff {
		f = HungUp // the cautious reading
	}
	c.failure.CompareAndSwap(uint32(noFailure), uint32(f))
	return true
}

// A runContext is the context of a handler: the lease's, with a limit.
type runContext struct {
	context.Context
	lease   context.Context
	failure atomic.Uint32
}

// Err asks the lease first, because a process that was paused must find its context dead before any
// timer fires.
func (c *runContext) Err() error {
	_ = c.lease.Err()
	return c.Context.Err()
}

type runContextKey struct{}

// Value returns the runContext itself to Fail.
func (c *runContext) Value(key any) any {
	if key == (runContextKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// begin makes the run known and its context. The caller calls end in a defer.
func (s *requestState) begin() (end func()) {
	lease := s.lease
	ctx, cancel := context.WithTimeout(lease.Context(), s.m.options.HandlerLimit)
	s.ctx = &runContext{Context: ctx, lease: lease.Context()}
	s.run = &localRun{fingerprint: s.fingerprint, lease: lease, began: time.Now()}
	s.m.local.enter(s.key, s.run)
	s.answer = s.newRecorder()
	return func() {
		if !s.settled { // the handler has panicked, or a function of Options
			s.answer.finish()
			s.rollback()
			s.event.Handler = time.Since(s.run.began)
			s.settle(settlement{outcome: store.Abandon})
		}
		cancel()
	}
}

// runNew runs a request whose key was granted.
func (s *requestState) runNew() {
	defer s.begin()()
	if !s.admitted() {
		return
	}
	s.event.Attempt, s.event.Fence = s.lease.Attempt(), s.lease.Fence()
	if s.m.options.Transactor != nil {
		s.handleIn()
	} else {
		s.handle()
	}
}

// admitted reports whether the bounds let the run begin. If not, the claim is undone and the request
// has been served.
func (s *requestState) admitted() bool {
	o, p := OutcomeOverloaded, problemOverloaded
	left, full := s.m.quota.full(s.principal)
	switch {
	case full:
		o, p = OutcomeOverQuota, problemOverQuota
		p.RetryAfter = left
	case s.room.grow(s.m.options.MaxStored):
		return true
	}
	s.settle(settlement{outcome: store.Undo})
	if !full {
		s.event.Err = errMaxBodyMemory
	}
	s.refuse(o, p)
	return false
}

// handle runs the handler, settles the key, and sends the answer. A panic and runtime.Goexit pass
// through it.
func (s *requestState) handle() {
	s.next.ServeHTTP(s.answer, withoutDeadlines(s.withBody(s.ctx)))
	whole := s.answer.finish()
	s.event.Handler = time.Since(s.run.began)
	s.conclude(whole)
}

// conclude settles the key after the handler has returned, and sends the answer.
func (s *requestState) conclude(whole bool) {
	failure := Failure(s.ctx.failure.Load())
	switch {
	case failure != noFailure:
		s.concludeFailure(failure)
	case !whole:
		s.send(s.settle(settlement{outcome: store.Abandon}), OutcomeInterrupted)
	default:
		s.send(s.settle(s.settlement()), OutcomeRan)
	}
}

// concludeFailure settles a run whose origin gave no answer, and says so.
func (s *requestState) concludeFailure(f Failure) {
	o, how := OutcomeInterrupted, store.Abandon
	if f == Unreached {
		o = OutcomeUnreached
		if !s.answer.streaming {
			how = store.Release
		}
	}
	lost := s.settle(settlement{outcome: how})
	switch {
	case s.answer.streaming:
		s.breakOff(o)
	case lost:
		s.send(true, o)
	default:
		s.refuse(o, FailureProblem(f))
	}
}

// send sends an answer that was held back, or ends one that streamed. If the lease was lost, the
// answer must not reach the client.
func (s *requestState) send(lost bool, o Outcome) {
	s.event.Status = s.answer.status
	switch {
	case !lost:
		if !s.answer.streaming {
			s.body.remove()
			s.slot.end()
			s.room.shrink(int64(len(s.answer.body)))
			s.answer.send()
		}
		s.observe(o)
	case s.answer.streaming:
		s.breakOff(OutcomeLost)
	default:
		s.event.Err = dibs.ErrLost
		s.refuse(OutcomeLost, problemLost)
	}
}

// breakOff ends an answer that was sent in part, so that the client does not take the part for the
// whole.
func (s *requestState) breakOff(o Outcome) {
	s.event.Status = 0
	s.observe(o)
	panic(http.ErrAbortHandler)
}
