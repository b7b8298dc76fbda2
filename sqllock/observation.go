package sqllock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dibs-go/dibs"
)

// Observer is called when a lock was taken or refused, and when it ended if that is seen, with the
// context given to the call. It must not block. dibsotel's Telemetry.Lease makes metrics and spans
// of it.
//
// Waited has the whole wait. Queued is not set, because no server says it. Event.Key is the digest
// of the lock's name:
//
//	Advisory, Named, LockTx  what Lock.String returns
//	LockRows                 fmt.Sprint(table, ids)
//	Row                      fmt.Sprint(Select, args)
//	Sequence, FenceCheck     the scope, the resource
//	Transact                 the Dialect's name, because a transaction has none
type Observer func(context.Context, dibs.Event)

// observation is what Observe gets of one call that takes a lock of a transaction.
type observation struct {
	observe Observer // or nil
	key     dibs.Key
	fence   uint64
	tx      bool // the transaction is the application's, so its end is not seen

	since, granted, settling time.Time // the wait began; the lock was granted; the commit began
	held, had                bool      // now; in the last try
}

// observed begins a wait for what the parts name.
func observed(observe Observer, parts ...any) observation {
	o := observation{observe: observe, since: time.Now()}
	if observe != nil {
		o.key.Name = fmt.Sprint(parts...)
	}
	return o
}

// inTx tells how the wait ended for a lock of the application's transaction.
func (o *observation) inTx(ctx context.Context, err error) {
	o.tx = true
	if err != nil {
		o.refused(ctx, err)
		return
	}
	o.acquired(ctx)
}

func (o *observation) acquired(ctx context.Context) {
	o.granted, o.settling = time.Now(), time.Time{}
	o.held, o.had = true, true
	o.tell(ctx, dibs.Event{Kind: dibs.EventAcquired, Waited: o.granted.Sub(o.since)})
}

// refused tells why the call ends, unless its last try had the lock.
func (o *observation) refused(ctx context.Context, err error) {
	if err != nil && !o.had {
		o.tell(ctx, dibs.Event{Kind: dibs.EventRefused, Waited: time.Since(o.since), Err: err})
	}
}

// ended tells how a transaction ended that had the lock. The next try begins to wait.
func (o *observation) ended(ctx context.Context, d Dialect, err error) {
	if !o.held {
		return
	}
	now := time.Now()
	e := dibs.Event{Kind: dibs.EventReleased, Waited: o.granted.Sub(o.since), Held: now.Sub(o.granted)}
	if !o.settling.IsZero() {
		e.Settled = now.Sub(o.settling)
	}
	switch {
	case errors.Is(err, ErrUnknown):
		e.Kind, e.Err = dibs.EventLost, err
	case d.Conflicted(err):
		e.Kind, e.Err = dibs.EventAbandoned, err
	}
	o.held, o.since = false, now
	o.tell(ctx, e)
}

func (o *observation) tell(ctx context.Context, e dibs.Event) {
	if o.observe == nil {
		return
	}
	e.InTx, e.Fence = o.tx, o.fence
	o.observe(ctx, e.WithKey(o.key))
}
