package dibs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/internal/batch"
	"github.com/dibs-go/dibs/store"
)

// Lease is the right to a key until it is settled or lost. It is renewed in the background.
// Its methods are safe for concurrent use.
//
// A holder ends its work before it settles the lease. If a settlement was sent and its answer
// does not say what was done, the lease may be over: its context ends with cause ErrLost, and
// it is not trusted again. It is renewed until the holder settles it again.
type Lease struct {
	keeper  *keeper
	claim   store.Claim
	answer  store.Answer
	margin  time.Duration // how long before the lease ends the holder stops trusting it
	limit   time.Time     // when the lease ends although it could be renewed; zero: never
	granted time.Time
	queued  bool          // it was waited for
	waited  time.Duration // for the observer
	over    atomic.Bool   // its end was reported
	context leaseContext
	cancel  context.CancelCauseFunc

	// trusted is until when the holder may trust the lease, since the client's epoch: the
	// moment when the claim or the last successful renewal was sent, plus the TTL, less the
	// margin. It is never after the limit.
	trusted atomic.Int64
	// doubted is when the first settlement was sent that has no definite answer, since the
	// epoch; 0: there is none.
	doubted atomic.Int64

	steps steps

	settling   sync.Mutex  // held while a settlement is under way
	settled    bool        // under settling: the store has taken it
	settleFrom time.Time   // under settling: when the last settlement began, for the observer
	kept       bool        // under settling: the store may have its record
	paused     atomic.Bool // a transaction settles it, and a renewal would wait for that

	// Under the renewer's lock.
	due   time.Time     // when the renewer looks at the lease again
	lasts time.Duration // how long the lease lasts by the store's last answer
	index int           // in the renewer's heap; -1 when not in it
}

// A keeper is what a lease uses of its client.
type keeper struct {
	store   Store
	epoch   time.Time // where the client's monotonic time is counted from
	timeout time.Duration
	observe func(context.Context, Event) // or nil
	settles *batch.Batcher[store.Settlement, error]
	renewer *renewer
	undoer  *undoer
	done    chan struct{} // closed when the client is closed
}

// margin is the part of a lease that its holder does not use, because the clocks of two
// machines drift apart and a context takes a moment to end.
func margin(ttl time.Duration) time.Duration { return ttl/50 + time.Millisecond }

// newLease makes the lease of an answer to what was sent at that moment.
func newLease(k *keeper, r request, a store.Answer, sent time.Time) *Lease {
	l := &Lease{keeper: k, claim: r.Claim, answer: a, granted: sent, queued: r.queued, index: -1}
	if k.observe != nil {
		l.waited = time.Since(r.start)
	}
	l.margin = max(r.stopTimeout, margin(r.TTL))
	if r.maxLifetime > 0 {
		l.limit = sent.Add(r.maxLifetime)
	}
	l.context.lease, l.context.parent = l, r.parent
	l.context.Context, l.cancel = context.WithCancelCause(r.parent)
	l.trust(sent)
	l.lasts = r.TTL
	l.due = l.renewAt(sent)
	return l
}

// renewAt is when a lease that was confirmed in answer to what was sent at that moment is
// renewed, or when it ends, if that is earlier.
func (l *Lease) renewAt(sent time.Time) time.Time {
	due := sent.Add(renewEvery(l.lasts))
	if trusted := l.until(); trusted.Before(due) {
		return trusted
	}
	return due
}

// newPushedLease makes the lease of a pushed grant. It was granted after the answer to what
// was sent at that moment, and lasts PushedTTL.
func newPushedLease(k *keeper, r request, a store.Answer, sent time.Time) *Lease {
	l := newLease(k, r, a, sent)
	l.granted = time.Now()
	end := pushedUntil(r, sent)
	if r.maxLifetime > 0 {
		if l.limit = l.granted.Add(r.maxLifetime); l.limit.Before(end) {
			end = l.limit
		}
	}
	l.trusted.Store(int64(end.Sub(k.epoch)))
	l.lasts = end.Sub(l.granted)
	l.due = l.renewAt(l.granted)
	return l
}

// pushedUntil is until when the holder may trust a pushed grant. The claim's own TTL counts
// if it is shorter than PushedTTL, because a question of the waiter that is still under way
// can make the lease last no longer than that.
func pushedUntil(r request, sent time.Time) time.Time {
	lasts := min(store.PushedTTL, r.TTL)
	return sent.Add(lasts - max(r.stopTimeout, margin(lasts)))
}

// begin starts to renew a new lease.
func (l *Lease) begin() (*Lease, error) {
	if l.overdue() {
		l.end(ErrLost)
		l.keeper.undoer.undo(l.claim)
		return nil, &StoreError{Op: "claim", Err: errors.New("the answer took longer than the lease lasts")}
	}
	if !l.keeper.renewer.add(l) {
		l.end(ErrClosed)
		l.keeper.undoer.undo(l.claim)
		return nil, ErrClosed
	}
	return l, nil
}

// Context ends with cause ErrLost when the lease is lost, with cause ErrClosed when the
// client is closed, when the context given to Acquire ends, and when the lease is settled.
// It carries the lease; see FromContext.
func (l *Lease) Context() context.Context { return &l.context }

// Key returns the key that is held.
func (l *Lease) Key() Key { return l.claim.Key }

// ID is the public name of this lease, which operators see.
func (l *Lease) ID() string { return l.claim.Token.ID() }

// Fence is the fencing token: it rises with every grant of the key. A resource that
// remembers the highest fence it saw and refuses lower ones is safe from a holder that was
// paused for longer than its lease.
func (l *Lease) Fence() uint64 { return l.answer.Fence }

// Attempt is 1 plus the number of leases in a row that were abandoned before this one. More
// than 1 means that the last holder crashed or was cut off, and its work may be half done.
func (l *Lease) Attempt() int { return l.answer.Attempt }

// Until is when the lease's context ends unless it is renewed before: the moment until
// which the holder may trust the lease. Renewals move it.
func (l *Lease) Until() time.Time {
	if at := l.doubted.Load(); at != 0 {
		return l.keeper.epoch.Add(time.Duration(at))
	}
	return l.until()
}

// until is until when the lease is renewed, and can be settled, unless that moves.
func (l *Lease) until() time.Time {
	return l.keeper.epoch.Add(time.Duration(l.trusted.Load()))
}

// Err is nil while the lease is held and trusted. Otherwise it is the cause with which the
// lease's context ended. While a settlement is under way it is an ErrLost, too.
func (l *Lease) Err() error {
	if l.context.Err() != nil {
		return context.Cause(&l.context)
	}
	if l.doubted.Load() != 0 {
		return l.loss()
	}
	return nil
}

// Progress returns what the abandoned holders before this one saved last, or nil.
func (l *Lease) Progress() []byte { return l.answer.Progress }

// Save keeps progress with the lease and renews it. The next holder gets the progress if
// this one does not settle. At most MaxProgress bytes. Save returns ErrLost when the lease
// is lost, and then nothing is saved. It returns ErrStore when the store did not answer
// while the lease could be trusted.
func (l *Lease) Save(ctx context.Context, progress []byte) error {
	if len(progress) > store.MaxProgress {
		return fmt.Errorf("dibs: the progress has %d bytes; it may have at most %d", len(progress), store.MaxProgress)
	}
	if err := l.Err(); err != nil {
		return err
	}
	if progress == nil {
		progress = []byte{}
	}
	renewal := store.Renewal{Key: l.claim.Key, Token: l.claim.Token, TTL: l.claim.TTL, Progress: progress}
	ctx, cancel := context.WithTimeout(ctx, l.keeper.timeout)
	defer cancel()
	for {
		sent, until := time.Now(), l.until()
		err, callErr := l.save(ctx, until, renewal)
		switch {
		case callErr != nil && ctx.Err() == nil && l.until().After(until):
			continue // it was renewed meanwhile
		case callErr != nil:
			return &StoreError{Op: "renew", Err: callErr}
		case errors.Is(err, ErrLost):
			l.keeper.renewer.lose(l)
			return ErrLost
		case err != nil:
			return err
		}
		l.trust(sent)
		return nil
	}
}

// HoldIn holds the lease in a transaction of the application, which pgstore's Holder wraps: until the
// transaction has ended no other claim is granted the key. So what the transaction writes is never late,
// even if the process is paused in it for longer than the lease lasts. The lease is renewed meanwhile.
//
// Call it before the writes, and settle the lease after COMMIT. It returns ErrLost if the lease is
// lost. After an error of the server the transaction can only be rolled back.
func (l *Lease) HoldIn(ctx context.Context, h Holder) error {
	if err := l.Err(); err != nil {
		return err
	}
	err := h.Hold(ctx, l.claim.Key, l.claim.Token)
	if errors.Is(err, ErrLost) {
		l.keeper.renewer.lose(l)
		return ErrLost
	}
	return err
}

// save asks the store once. It ends when the lease is no longer trusted, because its caller
// could not stop in time otherwise.
func (l *Lease) save(ctx context.Context, until time.Time, renewal store.Renewal) (err, callErr error) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	errs := make([]error, 1)
	callErr = l.keeper.store.Renew(ctx, []store.Renewal{renewal}, errs)
	return errs[0], callErr
}

// overdue reports whether the lease was not confirmed in time to be trusted.
func (l *Lease) overdue() bool { return time.Since(l.keeper.epoch) >= time.Duration(l.trusted.Load()) }

// trust extends the trust: the store confirmed the lease in answer to what was sent at that
// moment.
func (l *Lease) trust(sent time.Time) {
	end := sent.Add(l.claim.TTL - l.margin)
	if !l.limit.IsZero() && l.limit.Before(end) {
		end = l.limit
	}
	until := int64(end.Sub(l.keeper.epoch))
	for {
		old := l.trusted.Load()
		if until <= old || l.trusted.CompareAndSwap(old, until) {
			return
		}
	}
}

// doubt takes the trust from the lease, because a settlement is sent. Until a definite answer it
// may have been carried out, or be still on its way. first says that there was no doubt before, so
// that the answer ends it.
func (l *Lease) doubt() (first bool) {
	return l.doubted.CompareAndSwap(0, cmp.Or(int64(time.Since(l.keeper.epoch)), -1))
}

// end ends the lease's context. A nil cause is that of a settled lease.
func (l *Lease) end(cause error) { l.cancel(cause) }

// ending reports whether a settlement is under way or done. A renewal that finds no lease
// then does not mean that the lease was lost.
func (l *Lease) ending() bool {
	if !l.settling.TryLock() {
		return true
	}
	defer l.settling.Unlock()
	return l.settled
}

// ended reports the end of a lease, once.
func (l *Lease) ended(kind EventKind) {
	if !l.over.CompareAndSwap(false, true) || l.keeper.observe == nil {
		return
	}
	e := l.event(kind)
	e.Held = time.Since(l.granted)
	if kind == EventLost {
		e.Err = l.loss()
	} else {
		e.Settled = time.Since(l.settleFrom)
	}
	l.keeper.observe(&l.context, e)
}

// loss returns the ErrLost of the lease.
func (l *Lease) loss() error {
	if l.doubted.Load() != 0 {
		return &unansweredError{l.claim.Key}
	}
	return ErrLost
}

// event returns an event of the lease.
func (l *Lease) event(kind EventKind) Event {
	return Event{
		Kind: kind, key: l.claim.Key, token: l.claim.Token, Label: l.claim.Owner.Label,
		Fence: l.Fence(), Attempt: l.Attempt(), Queued: l.queued, Waited: l.waited,
	}
}

// leaseContext is the context of a lease. It has ended as soon as the lease is no longer
// trusted, even if the process was paused and no timer has fired yet.
type leaseContext struct {
	context.Context
	lease  *Lease
	parent context.Context
}

func (c *leaseContext) Err() error {
	if c.lease.overdue() {
		c.lease.cancel(ErrLost)
	} else {
		_ = c.parent.Err() // if the parent has ended just now, this ends it too
	}
	return c.Context.Err()
}

type leaseKey struct{}

func (c *leaseContext) Value(key any) any {
	if key == (leaseKey{}) {
		return c.lease
	}
	return c.Context.Value(key)
}

// FromContext returns the innermost lease under which the code that was given ctx runs.
func FromContext(ctx context.Context) (*Lease, bool) {
	l, ok := ctx.Value(leaseKey{}).(*Lease)
	return l, ok
}
