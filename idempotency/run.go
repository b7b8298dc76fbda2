package idempotency

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
)

// A tether is the context under which a key is claimed, held and settled. It
// derives from no request, so that the work does not end because a client went
// away, and an alarm ends it when the store or the handler takes too long. One
// that never ended serves the next request.
type tether struct {
	ctx context.Context
	end context.CancelCauseFunc
}

func newTether() any {
	t := new(tether)
	t.ctx, t.end = context.WithCancelCause(context.Background())
	return t
}

// A run is the part of a visit that its handler sees: the context.
type run struct {
	// Context is the lease's: it ends with it.
	context.Context
	values  context.Context // the request's: only its values
	limit   time.Time
	failure atomic.Uint32
}

// begin makes the run the context of a handler.
func (r *run) begin(lease *dibs.Lease, request context.Context, limit time.Time) {
	r.Context, r.values, r.limit = lease.Context(), request, limit
}

// Deadline is the handler's limit.
func (r *run) Deadline() (time.Time, bool) { return r.limit, true }

// Err says DeadlineExceeded at the handler's limit.
func (r *run) Err() error {
	err := r.Context.Err()
	if err != nil && context.Cause(r.Context) == context.DeadlineExceeded {
		return context.DeadlineExceeded
	}
	return err
}

type runKey struct{}

// Value finds the lease's values before the request's. Among the former is
// what package context keeps there to end what derives from it; that of the
// request is never found.
func (r *run) Value(key any) any {
	if key == (runKey{}) {
		return r
	}
	if value := r.Context.Value(key); value != nil {
		return value
	}
	return r.values.Value(key)
}

// fail is Fail.
func fail(ctx context.Context, f Failure) bool {
	r, ok := ctx.Value(runKey{}).(*run)
	if !ok {
		return false
	}
	if f == noFailure || f > BrokeOff {
		f = HungUp // the cautious reading
	}
	r.failure.CompareAndSwap(uint32(noFailure), uint32(f))
	return true
}

// failed returns what Fail was told.
func (r *run) failed() Failure { return Failure(r.failure.Load()) }
