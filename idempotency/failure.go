package idempotency

import (
	"context"
	"sync/atomic"
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
