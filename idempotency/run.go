package idempotency

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/memory"
	"github.com/dibs-go/dibs/store"
)

// A run is the run of a handler under a lease.
type run struct {
	*exchange
	lease    *dibs.Lease
	original *original // the run as its duplicates see it
	ctx      *runContext
	tx       dibs.Transaction // with Options.Transactor
	answer   *recorder
	tooLarge bool // the store will never take the answer
	settled  bool // or will be in the background
}

// claim claims the key, and runs the handler if the key is granted.
func (x *exchange) claim() {
	x.m.unsettled.Add(1)
	defer x.m.unsettled.Add(-1)
	lease, err := x.acquire()
	if err == nil {
		x.runUnder(lease)
		return
	}
	record := x.refuseClaim(err)
	if x.turn {
		x.m.duplicates.pass(x.req.key, &original{fingerprint: x.req.fingerprint, record: record})
	}
}

// acquire asks the store for the key, and waits for it as Options.Wait says.
func (x *exchange) acquire() (*dibs.Lease, error) {
	o := &x.m.options
	options := dibs.AcquireOptions{
		TTL: o.Lease, Fingerprint: x.req.fingerprint, MaxAge: dibs.AnyAge, AtMostOnce: o.OnCrash == AtMostOnce, Detach: true,
	}
	asked := time.Now()
	limit, stop := x.m.withStoreTimeout(x.req.Context())
	defer stop()
	lease, err := x.tryAcquire(limit, &options)
	x.event.Claiming = time.Since(asked)
	left := o.Wait - time.Since(x.event.Start)
	if left <= 0 || !errors.Is(err, dibs.ErrHeld) {
		return lease, err
	}
	options.Wait = left
	asked = time.Now()
	ctx, cancel := context.WithTimeoutCause(x.req.Context(), left+o.StoreTimeout, errStoreTimeout)
	defer cancel()
	lease, err = x.m.client.Acquire(ctx, x.req.key, &options)
	x.event.Waiting += time.Since(asked)
	return lease, err
}

// tryAcquire asks the store for the key once. The record that may be the answer counts before it is read:
// as long as the longest one lately.
func (x *exchange) tryAcquire(ctx context.Context, o *dibs.AcquireOptions) (*dibs.Lease, error) {
	m := x.m.memory
	room := memory.Open(m.Records)
	defer room.Close()
	if room.Wait(ctx, m.Expected()) != nil {
		return nil, errMaxBodyMemory
	}
	lease, err := x.m.client.TryAcquire(ctx, x.req.key, o)
	done, _ := errors.AsType[*dibs.DoneError](err)
	switch {
	case done != nil:
		m.Read(len(done.Record.Data))
	case err == nil:
		m.Read(0)
	}
	return lease, err
}

// runUnder runs a request whose key was granted.
func (x *exchange) runUnder(lease *dibs.Lease) {
	ctx, cancel := context.WithTimeout(lease.Context(), x.m.options.HandlerLimit)
	defer cancel()
	r := &run{
		exchange: x, lease: lease,
		original: &original{fingerprint: x.req.fingerprint, lease: lease, began: time.Now()},
		ctx:      &runContext{Context: ctx, lease: lease.Context()},
	}
	x.m.duplicates.enter(x.req.key, r.original)
	r.answer = r.newRecorder()
	defer r.abandon()
	x.event.Attempt, x.event.Fence = lease.Attempt(), lease.Fence()
	if x.m.options.Transactor != nil {
		r.handleIn()
	} else {
		r.handle()
	}
}

// abandon settles the key if the handler, or a function of Options, has panicked.
func (r *run) abandon() {
	if r.settled {
		return
	}
	r.answer.finish()
	r.rollback()
	r.event.Handler = time.Since(r.original.began)
	r.settle(settlement{outcome: store.Abandon})
}

// forwarded returns the request that the handler gets.
func (x *exchange) forwarded(ctx context.Context) *http.Request {
	r := x.req.withBody(ctx)
	r.Header = x.dialect.Forward(r.Header)
	return r
}

// handle runs the handler, settles the key, and sends the answer. A panic and runtime.Goexit pass
// through it.
func (r *run) handle() {
	r.next.ServeHTTP(r.answer, r.forwarded(r.ctx))
	whole := r.answer.finish()
	r.event.Handler = time.Since(r.original.began)
	r.conclude(whole)
}
