package dibs

import (
	"context"
	"errors"
	"time"

	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/store"
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
	token store.Token
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

// refused reports a claim that was not granted.
func (c *Client) refused(ctx context.Context, r *request, err error) {
	if c.observe == nil {
		return
	}
	c.observe(ctx, Event{
		Kind: EventRefused, key: r.Key, Label: r.Owner.Label,
		Queued: r.queued, Waited: time.Since(r.start), Err: err,
	})
}

// acquired reports a grant.
func (c *Client) acquired(l *Lease) {
	if c.observe != nil {
		c.observe(&l.context, l.event(EventAcquired))
	}
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
	to  func(StoreCall) // or nil
	log *outage.Log     // or nil
}

// observe returns the store, observed as the options say.
func observe(store Store, o *Options) Store {
	if o.ObserveStore == nil && o.Logger == nil {
		return store
	}
	s := observed{Store: store, to: o.ObserveStore}
	if o.Logger != nil {
		s.log = outage.New(o.Logger, "calls")
	}
	return s
}

func (o observed) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	began := time.Now()
	err := o.Store.Claim(ctx, claims, answers)
	o.called(ctx, began, StoreCall{Verb: "claim", Size: len(claims)}, err, func(i int) error { return answers[i].Err })
	return err
}

func (o observed) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	began := time.Now()
	err := o.Store.Renew(ctx, renewals, errs)
	o.called(ctx, began, StoreCall{Verb: "renew", Size: len(renewals)}, err, func(i int) error { return errs[i] })
	return err
}

func (o observed) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	began := time.Now()
	err := o.Store.Settle(ctx, settlements, errs)
	undone := 0
	for i, s := range settlements {
		if s.Outcome == store.Undo && err == nil && errs[i] == nil {
			undone++
		}
	}
	o.called(ctx, began, StoreCall{Verb: "settle", Size: len(settlements), Undone: undone}, err, func(i int) error { return errs[i] })
	return err
}

// called reports a call that returned err. alone returns why an element failed alone.
func (o observed) called(ctx context.Context, began time.Time, c StoreCall, err error, alone func(i int) error) {
	c.Took, c.Err = time.Since(began), failure(ctx, err)
	if o.to != nil {
		o.to(c)
	}
	if o.log == nil {
		return
	}
	if err != nil {
		// The call may have ended because its caller does not wait any more.
		if ctx.Err() == nil || c.Took >= slowCall && !errors.Is(c.Err, context.Canceled) {
			o.log.Failed(c.Err)
		}
		return
	}
	for i := range c.Size {
		if err := alone(i); storeFault(err) {
			o.log.Failed(err)
			return
		}
	}
	o.log.AnsweredSince(began)
}

// slowCall is how long a call has to last until the end of its time says something about the
// store.
const slowCall = time.Second

// storeFault reports whether an element failed because of the store, and not because of its key
// or its data.
func storeFault(err error) bool {
	return err != nil && !errors.Is(err, ErrLost) && !errors.Is(err, ErrBusy) && !errors.Is(err, ErrTooLarge)
}

// failure returns why a call failed, with the end of its context and the cause, because a
// store's own error need not contain them.
func failure(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return errors.Join(err, ctx.Err(), context.Cause(ctx))
}
