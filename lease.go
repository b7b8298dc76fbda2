package dibs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Lease is the right to a key until it is settled or lost. It is renewed in
// the background. Its methods are safe for concurrent use.
type Lease struct {
	client  *Client
	claim   Claim
	answer  Answer
	margin  time.Duration // how long before the end of the lease trust ends
	granted time.Time     // when what was granted was asked for, or told
	queued  bool          // it was waited for; this and
	waited  time.Duration // for how long are for the observer
	over    atomic.Bool   // its end was counted
	context leaseContext
	cancel  context.CancelCauseFunc

	// trusted is until when the holder may believe in the lease, on the
	// process's monotonic clock: it sent the claim or the last successful
	// renewal one TTL, less a margin, before.
	trusted atomic.Int64 // since the client's epoch

	steps steps // what Step remembers

	settling   sync.Mutex  // held while a settlement is under way
	settled    bool        // under settling: the store has taken it
	settleFrom time.Time   // under settling: when the last settlement began, for the observer
	kept       bool        // under settling: the store may have a record of it
	paused     atomic.Bool // a transaction settles it, and a renewal would wait for that

	// The renewer's, under its lock.
	due   time.Time     // when to look at this lease again
	lasts time.Duration // how long what the store said last is good for
	place int           // in the renewer's heap; -1 when not in it
}

// margin is the part of the TTL that a holder does not rely on: clocks of two
// machines drift apart, and a context takes a moment to end.
func margin(ttl time.Duration) time.Duration { return ttl/50 + time.Millisecond }

// newLease makes the lease of an answer to what was sent at that moment.
func newLease(ctx context.Context, c *Client, b bid, a Answer, sent time.Time) *Lease {
	l := &Lease{client: c, claim: b.Claim, answer: a, granted: sent, queued: b.queued, place: -1}
	if c.options.Observe != nil {
		l.waited = time.Since(b.start)
	}
	l.margin = max(b.margin, margin(b.TTL))
	l.context.lease, l.context.parent = l, ctx
	l.context.Context, l.cancel = context.WithCancelCause(ctx)
	l.trust(sent)
	l.lasts = b.TTL
	l.due = sent.Add(renewEvery(l.lasts))
	return l
}

// newToldLease makes the lease of a grant that was told after the answer to
// what was sent at that moment: it was not made before, and lasts PushedTTL.
func newToldLease(ctx context.Context, c *Client, b bid, a Answer, sent time.Time) *Lease {
	l := newLease(ctx, c, b, a, sent)
	l.granted = time.Now()
	end := toldUntil(b, sent)
	l.trusted.Store(int64(end.Sub(c.epoch)))
	l.lasts = end.Sub(l.granted)
	l.due = l.granted.Add(renewEvery(l.lasts))
	return l
}

// toldUntil is until when the holder may believe in a grant that was told after
// the answer to what was sent at that moment. A claim or a renewal of its own can
// make the lease last no longer than its TTL, if that is shorter than PushedTTL.
func toldUntil(b bid, sent time.Time) time.Time {
	lasts := min(PushedTTL, b.TTL)
	return sent.Add(lasts - max(b.margin, margin(lasts)))
}

// run runs fn under the lease and releases it on every way out.
func (l *Lease) run(fn func(context.Context) error) (err error) {
	defer func() {
		// What fn did is done: that its lease could not be given back is the
		// undoer's to mend and no reason for the caller to run fn again.
		if lost := l.Release(); errors.Is(lost, ErrLost) {
			err = errors.Join(err, lost)
		}
	}()
	return fn(l.Context())
}

// Context ends with cause ErrLost when the lease is lost, with cause ErrClosed
// when the client is closed, when the context given to Acquire ends, and when
// the lease is settled. It carries the lease; see FromContext.
func (l *Lease) Context() context.Context { return &l.context }

// Key returns the key that is held.
func (l *Lease) Key() Key { return l.claim.Key }

// ID is the public name of this attempt, the one that operators see.
func (l *Lease) ID() string { return l.claim.Token.ID() }

// Fence is the fencing token: it rises with every grant of the key. A resource
// that remembers the highest fence it saw, and refuses lower ones, is safe from
// a holder that was paused beyond its lease.
func (l *Lease) Fence() uint64 { return l.answer.Fence }

// Attempt is 1 plus the number of leases in a row that were abandoned before
// this one: more than 1 means that the last holder crashed or was cut off, and
// what it began may be half done.
func (l *Lease) Attempt() int { return l.answer.Attempt }

// Until is when the lease's context ends unless it is renewed before: the
// moment up to which the holder may believe in it. Renewals move it.
func (l *Lease) Until() time.Time {
	return l.client.epoch.Add(time.Duration(l.trusted.Load()))
}

// Progress returns what the abandoned holders before this one saved last, or
// nil.
func (l *Lease) Progress() []byte { return l.answer.Progress }

// Save keeps progress with the lease, for the next holder in case this one
// does not settle, and renews it. At most MaxProgress bytes. It returns ErrLost
// when the lease is lost (nothing is saved then) and ErrStore when the store
// did not answer, by when the lease would have been lost at the latest.
func (l *Lease) Save(ctx context.Context, progress []byte) error {
	if len(progress) > MaxProgress {
		return fmt.Errorf("dibs: the progress has %d bytes; it may have at most %d", len(progress), MaxProgress)
	}
	if err := l.Err(); err != nil {
		return err
	}
	if progress == nil {
		progress = []byte{}
	}
	renewal := Renewal{Key: l.claim.Key, Token: l.claim.Token, TTL: l.claim.TTL, Progress: progress}
	ctx, cancel := context.WithTimeout(ctx, l.client.options.Timeout)
	defer cancel()
	for {
		sent, until := time.Now(), l.Until()
		err, callErr := l.save(ctx, until, renewal)
		switch {
		case callErr != nil && ctx.Err() == nil && l.Until().After(until):
			continue // it was renewed meanwhile
		case callErr != nil:
			return &StoreError{Op: "renew", Err: callErr}
		case errors.Is(err, ErrLost):
			l.client.renewer.lose(l)
			return ErrLost
		case err != nil:
			return err
		}
		l.trust(sent)
		return nil
	}
}

// save asks the store once to renew the lease and keep its progress. It waits no longer
// than the lease is trusted: whoever waits here cannot stop when it is lost.
func (l *Lease) save(ctx context.Context, until time.Time, renewal Renewal) (err, callErr error) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	errs := make([]error, 1)
	callErr = l.client.store.Renew(ctx, []Renewal{renewal}, errs)
	return errs[0], callErr
}

// Release ends the lease and leaves nothing behind. It returns nil also when
// the lease was settled before, ErrLost when it was lost before it could be
// released, ErrStore when the store did not answer, ErrBusy when it was too busy with
// the key for all of Options.Timeout, or what else the store said: then it is released
// in the background, or runs out. It does not end with the context of Acquire.
func (l *Lease) Release() error {
	// The batcher bounds each call of the store, and settle how many there are.
	err := l.settle(context.Background(), Settlement{Outcome: Release})
	if err != nil && !errors.Is(err, ErrLost) {
		// Nobody will ask again: the undoer does. And nothing renews it any more.
		l.settling.Lock()
		defer l.settling.Unlock()
		l.settled = true
		l.client.undoer.release(l.claim) // before Close can see that nobody holds it
		l.client.renewer.remove(l)
		l.end(nil)
		l.ended(EventReleased)
	}
	return err
}

// Complete ends the lease and leaves data behind as the key's record, kept for
// the retention (at least 1 ms). It returns ErrLost when the lease was lost
// (nothing is written then), ErrFull when the store has no room, ErrBusy when it was
// too busy with the key for all of ctx's time or of Options.Timeout, and ErrStore when
// it did not answer in ctx's time. After the last three the lease is still held: the
// caller may call Complete again, or Release.
func (l *Lease) Complete(ctx context.Context, data []byte, retention time.Duration) error {
	s, err := l.keep(data, retention)
	if err != nil {
		return err
	}
	return l.settle(ctx, s)
}

// keep returns the settlement that leaves data behind.
func (l *Lease) keep(data []byte, retention time.Duration) (Settlement, error) {
	if retention < time.Millisecond {
		return Settlement{}, fmt.Errorf("dibs: the retention is %v; it must be at least %v", retention, time.Millisecond)
	}
	if l.claim.Permits > 1 {
		return Settlement{}, errors.New("dibs: a key with more than one permit cannot have a record")
	}
	return Settlement{Outcome: Keep, Data: data, Retention: retention}, nil
}

// Abandon ends the lease as if its holder had crashed: the next holder is told,
// and a lease with AtMostOnce leaves an unknown outcome. It returns what Complete
// returns.
func (l *Lease) Abandon(ctx context.Context) error {
	return l.settle(ctx, Settlement{Outcome: Abandon})
}

// Undo ends the lease as if it had not been granted, for a holder that has done
// nothing: what the next one is told of those before it is what this one was told, and
// a place that it was redeemed from stands again. What was saved under it is dropped.
// It returns what Complete returns.
func (l *Lease) Undo(ctx context.Context) error {
	return l.settle(ctx, Settlement{Outcome: Undo})
}

// Err is nil while the lease is held and trusted, and otherwise says why it is
// not: ErrLost, ErrClosed, or the cause with which the context ended.
func (l *Lease) Err() error {
	if l.context.Err() != nil {
		return context.Cause(&l.context)
	}
	return nil
}

// settle ends the lease in the store.
func (l *Lease) settle(ctx context.Context, s Settlement) error {
	return l.settleBy(ctx, s, func(ctx context.Context, s Settlement) (err, callErr error) {
		if err, callErr = l.client.settle(ctx, s, l.overdue); errors.Is(callErr, errGaveUp) {
			callErr = context.Cause(ctx)
		}
		return err, callErr
	})
}

// settle settles, and again while the store is too busy with the key, which has done
// nothing then: until ctx ends, or over says so, or the client's Timeout is over.
func (c *Client) settle(ctx context.Context, s Settlement, over func() bool) (err, callErr error) {
	r := retry{began: time.Now()}
	for {
		err, _, callErr = c.settles.do(ctx, nil, s, nil)
		if callErr != nil || !errors.Is(err, ErrBusy) || over() || !c.again(ctx, &r, c.options.Timeout) {
			return err, callErr
		}
	}
}

// settleBy ends the lease by a call that does it. What the call returns is what the
// store says of the settlement, and why it is not known what became of it.
func (l *Lease) settleBy(ctx context.Context, s Settlement, call func(context.Context, Settlement) (err, callErr error)) error {
	l.settling.Lock()
	defer l.settling.Unlock()
	if l.settled {
		return nil
	}
	if l.client.options.Observe != nil {
		l.settleFrom = time.Now()
	}
	s.Key, s.Token = l.claim.Key, l.claim.Token
	unsure := l.kept && s.Outcome == Keep && !l.overdue()
	if l.lost() && !unsure {
		// The holder was told that it is lost, so it stays lost. What the store
		// still has of it ends as it would have ended by itself, only sooner:
		// the next holder is told, and goes on from what was saved.
		l.settled = true
		l.client.renewer.lose(l)
		l.client.undoer.abandon(l.claim)
		return ErrLost
	}
	err, callErr := call(ctx, s)
	if callErr != nil {
		// A renewal finds no lease if the record is there. So what a renewal
		// says is no longer the last word.
		l.kept = l.kept || s.Outcome == Keep
		return &StoreError{Op: "settle", Err: callErr}
	}
	switch {
	case errors.Is(err, ErrLost):
		l.settled = true
		l.client.renewer.lose(l)
		return ErrLost
	case err != nil:
		return err
	}
	l.finish(s.Outcome)
	return nil
}

// finish notes that the store has settled the lease. The caller has the lock.
func (l *Lease) finish(o Outcome) {
	l.settled = true
	l.client.renewer.remove(l)
	l.end(nil)
	l.ended(endings[o])
}

// endings says what an observer is told of a settled lease.
var endings = [...]EventKind{Release: EventReleased, Keep: EventCompleted, Abandon: EventAbandoned, Undo: EventReleased}

// lost reports whether the holder may no longer believe in the lease.
func (l *Lease) lost() bool {
	return l.overdue() || errors.Is(context.Cause(l.context.Context), ErrLost)
}

// ending reports whether a settlement is under way, or was: then what a renewal finds says
// nothing.
func (l *Lease) ending() bool {
	if !l.settling.TryLock() {
		return true
	}
	defer l.settling.Unlock()
	return l.settled
}

// overdue reports whether the lease's trust window is over.
func (l *Lease) overdue() bool { return time.Since(l.client.epoch) >= time.Duration(l.trusted.Load()) }

// trust extends the trust window: the store confirmed the lease in answer to
// something sent at that moment.
func (l *Lease) trust(sent time.Time) {
	until := int64(sent.Sub(l.client.epoch) + l.claim.TTL - l.margin)
	for {
		old := l.trusted.Load()
		if until <= old || l.trusted.CompareAndSwap(old, until) {
			return
		}
	}
}

// end ends the lease's context; a nil cause is that of a settled lease.
func (l *Lease) end(cause error) { l.cancel(cause) }

// leaseContext is the context of a lease. It is dead as soon as the trust
// window is over, also when the process was paused and the timer that should
// have ended it has not run yet.
type leaseContext struct {
	context.Context
	lease  *Lease
	parent context.Context
}

func (c *leaseContext) Err() error {
	if c.lease.overdue() {
		c.lease.cancel(ErrLost)
	} else {
		_ = c.parent.Err() // one that is dead, perhaps since just now, ends this one too
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

// waitsForItself reports whether the claim would be waited for in vain: the code that was
// given ctx runs under leases on the key that leave no room for it.
func (c *Claim) waitsForItself(ctx context.Context) bool {
	weight := c.Weight
	for l, ok := FromContext(ctx); ok; l, ok = FromContext(l.context.parent) {
		if l.claim.Key != c.Key || l.Err() != nil {
			continue
		}
		if weight += l.claim.Weight; l.claim.Permits != c.Permits || weight > c.Permits {
			return true
		}
	}
	return false
}

// FromContext returns the innermost lease under which the code that was given
// ctx runs.
func FromContext(ctx context.Context) (*Lease, bool) {
	l, ok := ctx.Value(leaseKey{}).(*Lease)
	return l, ok
}
