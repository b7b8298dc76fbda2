package dibs

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// EventKind says what happened.
type EventKind string

// What can happen to a claim and to a lease. Every Acquire ends in exactly one
// of the first two, and every lease in exactly one of the others, unless its
// holder never settles it.
const (
	EventAcquired  EventKind = "acquired"
	EventRefused   EventKind = "refused" // not acquired; Err says why
	EventReleased  EventKind = "released"
	EventCompleted EventKind = "completed" // a record was left behind
	EventAbandoned EventKind = "abandoned" // by its holder's own word
	EventLost      EventKind = "lost"
)

// Event is what an observer is told. It names the key by its digest alone, so that
// it can be logged.
type Event struct {
	Kind  EventKind
	Label string // as in Options or AcquireOptions
	Fence uint64 // 0 when it was refused
	// Queued says that the key was not free, and its turn was waited for.
	Queued  bool
	Waited  time.Duration // from the first question to the answer that was the grant or the refusal
	Held    time.Duration // from the grant on; 0 while it is not over
	Settled time.Duration // the part of Held for which the store was asked to end it
	// Attempt is more than 1 when the last holder abandoned the key.
	Attempt int
	Err     error

	key   Key
	token Token
}

// Key is the key's digest.
func (e *Event) Key() string { return e.key.Digest() }

// ID is that of the attempt; "" when it was refused.
func (e *Event) ID() string {
	if e.token.IsZero() {
		return ""
	}
	return e.token.ID()
}

// StoreCall is one call of a store, as an observer is told of it.
type StoreCall struct {
	Verb   string // "claim", "renew" or "settle"
	Size   int    // how many claims, leases or settlements it had
	Undone int    // how many of them undid a claim whose caller went away, or whose answer was lost
	Took   time.Duration
	Err    error // why the store did not answer, with the end of its context and the cause; nil when it did
}

// Stats counts what happened to a client's leases since it was made.
type Stats struct {
	Acquired, Refused                    uint64
	Released, Completed, Abandoned, Lost uint64
	// Waited counts the grants among Acquired that had to wait for their turn,
	// and TakenOver those whose key the last holder had abandoned.
	Waited, TakenOver uint64
	// Unanswered counts the refusals because the store did not answer.
	Unanswered uint64
}

// Stats returns the counts.
func (c *Client) Stats() Stats { return c.counts.read() }

// counts is Stats while it is counted.
type counts struct {
	acquired, refused, released, completed, abandoned, lost, waited, takenOver, unanswered atomic.Uint64
}

func (n *counts) read() Stats {
	return Stats{
		Acquired: n.acquired.Load(), Refused: n.refused.Load(),
		Released: n.released.Load(), Completed: n.completed.Load(), Abandoned: n.abandoned.Load(), Lost: n.lost.Load(),
		Waited: n.waited.Load(), TakenOver: n.takenOver.Load(), Unanswered: n.unanswered.Load(),
	}
}

// refused counts and reports a claim that was not granted.
func (c *Client) refused(ctx context.Context, r *request, err error) {
	c.counts.refused.Add(1)
	if errors.Is(err, ErrStore) {
		c.counts.unanswered.Add(1)
	}
	if c.options.Observe == nil {
		return
	}
	c.options.Observe(ctx, Event{
		Kind: EventRefused, key: r.Key, Label: r.Owner.Label,
		Queued: r.queued, Waited: time.Since(r.start), Err: err,
	})
}

// acquired counts and reports a grant.
func (c *Client) acquired(l *Lease) {
	c.counts.acquired.Add(1)
	if l.queued {
		c.counts.waited.Add(1)
	}
	if l.Attempt() > 1 {
		c.counts.takenOver.Add(1)
	}
	if c.options.Observe != nil {
		c.options.Observe(&l.context, l.event(EventAcquired))
	}
}

// ended counts and reports the end of a lease, once.
func (l *Lease) ended(kind EventKind) {
	if !l.over.CompareAndSwap(false, true) {
		return
	}
	n := &l.client.counts
	switch kind {
	case EventReleased:
		n.released.Add(1)
	case EventCompleted:
		n.completed.Add(1)
	case EventAbandoned:
		n.abandoned.Add(1)
	default:
		n.lost.Add(1)
	}
	if l.client.options.Observe == nil {
		return
	}
	e := l.event(kind)
	e.Held = time.Since(l.granted)
	if kind == EventLost {
		e.Err = ErrLost
	} else {
		e.Settled = time.Since(l.settleFrom)
	}
	l.client.options.Observe(&l.context, e)
}

// event names the lease to an observer.
func (l *Lease) event(kind EventKind) Event {
	return Event{
		Kind: kind, key: l.claim.Key, token: l.claim.Token, Label: l.claim.Owner.Label,
		Fence: l.Fence(), Attempt: l.Attempt(), Queued: l.queued, Waited: l.waited,
	}
}

// observed is a store whose calls an observer is told of.
type observed struct {
	Store
	tell func(StoreCall)
}

func (o observed) Claim(ctx context.Context, claims []Claim, answers []Answer) error {
	began := time.Now()
	err := o.Store.Claim(ctx, claims, answers)
	o.tell(StoreCall{Verb: "claim", Size: len(claims), Took: time.Since(began), Err: failure(ctx, err)})
	return err
}

func (o observed) Renew(ctx context.Context, renewals []Renewal, errs []error) error {
	began := time.Now()
	err := o.Store.Renew(ctx, renewals, errs)
	o.tell(StoreCall{Verb: "renew", Size: len(renewals), Took: time.Since(began), Err: failure(ctx, err)})
	return err
}

func (o observed) Settle(ctx context.Context, settlements []Settlement, errs []error) error {
	began := time.Now()
	err := o.Store.Settle(ctx, settlements, errs)
	undone := 0
	for i, s := range settlements {
		if s.Outcome == Undo && err == nil && errs[i] == nil {
			undone++
		}
	}
	o.tell(StoreCall{Verb: "settle", Size: len(settlements), Undone: undone, Took: time.Since(began), Err: failure(ctx, err)})
	return err
}

// failure is why a call failed: whatever a store says when its context ends, the observer
// is told that it did, and why.
func failure(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return errors.Join(err, ctx.Err(), context.Cause(ctx))
}
