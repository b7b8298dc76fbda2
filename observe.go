package dibs

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// EventKind says what happened.
type EventKind string

// What can happen to a claim and to a lease. Every Acquire ends in exactly one of the first
// two. Every lease ends in exactly one of the others, unless the client is closed first.
const (
	EventAcquired  EventKind = "acquired"
	EventRefused   EventKind = "refused" // not acquired; Event.Err says why
	EventReleased  EventKind = "released"
	EventCompleted EventKind = "completed" // it left a record behind
	EventAbandoned EventKind = "abandoned" // its holder called Abandon
	EventLost      EventKind = "lost"
)

// Event is what Options.Observe gets. It names the key only by its digest, so it can be
// logged.
type Event struct {
	Kind  EventKind
	Label string // as in Options or AcquireOptions
	Fence uint64 // 0 when it was refused
	// Queued says that the key was not free and the caller waited for its turn.
	Queued  bool
	Waited  time.Duration // from the call to the grant or the refusal
	Held    time.Duration // from the grant to the end; 0 before the end
	Settled time.Duration // the last part of Held: how long the settlement took
	// Attempt is more than 1 if the last holder abandoned the key; see Lease.Attempt.
	Attempt int
	Err     error

	key   Key
	token Token
}

// Key returns the key's digest.
func (e *Event) Key() string { return e.key.Digest() }

// ID returns the ID of the attempt; "" if it was refused.
func (e *Event) ID() string {
	if e.token.IsZero() {
		return ""
	}
	return e.token.ID()
}

// StoreCall is one call of a store, as Options.ObserveStore gets it.
type StoreCall struct {
	Verb   string // "claim", "renew" or "settle"
	Size   int    // how many claims, leases or settlements it had
	Undone int    // how many of them undid a claim whose caller stopped waiting or whose outcome was unknown
	Took   time.Duration
	Err    error // why the store did not answer; if the call's context ended, with its cause
}

// Stats counts what happened to a client's leases since it was made.
type Stats struct {
	Acquired, Refused                    uint64
	Released, Completed, Abandoned, Lost uint64
	// Waited counts the grants among Acquired that waited for their turn. TakenOver counts
	// the grants whose last holder had abandoned the key.
	Waited, TakenOver uint64
	// Unanswered counts the calls among Refused to which the store did not answer.
	Unanswered uint64
}

// Stats returns the counts since New.
func (c *Client) Stats() Stats { return c.counts.read() }

// counts counts what Stats returns.
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

// event returns an event of the lease.
func (l *Lease) event(kind EventKind) Event {
	return Event{
		Kind: kind, key: l.claim.Key, token: l.claim.Token, Label: l.claim.Owner.Label,
		Fence: l.Fence(), Attempt: l.Attempt(), Queued: l.queued, Waited: l.waited,
	}
}

// observed is a store whose calls are observed.
type observed struct {
	Store
	observe func(StoreCall)
}

func (o observed) Claim(ctx context.Context, claims []Claim, answers []Answer) error {
	began := time.Now()
	err := o.Store.Claim(ctx, claims, answers)
	o.observe(StoreCall{Verb: "claim", Size: len(claims), Took: time.Since(began), Err: failure(ctx, err)})
	return err
}

func (o observed) Renew(ctx context.Context, renewals []Renewal, errs []error) error {
	began := time.Now()
	err := o.Store.Renew(ctx, renewals, errs)
	o.observe(StoreCall{Verb: "renew", Size: len(renewals), Took: time.Since(began), Err: failure(ctx, err)})
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
	o.observe(StoreCall{Verb: "settle", Size: len(settlements), Undone: undone, Took: time.Since(began), Err: failure(ctx, err)})
	return err
}

// failure returns why a call failed, with the end of its context and the cause, because a
// store's own error need not contain them.
func failure(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return errors.Join(err, ctx.Err(), context.Cause(ctx))
}
