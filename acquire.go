package dibs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// AcquireOptions are what one call asks for. The zero value, and nil, mean a
// mutex that is waited for as the Client's Options say.
type AcquireOptions struct {
	// TTL of the lease. Default: the client's.
	TTL time.Duration

	// NoWait returns ErrHeld at once instead of waiting.
	NoWait bool
	// Wait is how long to wait before giving up with ErrHeld. Default: the
	// client's.
	Wait time.Duration

	// Permits is how many permits the key has, and Weight how many of them the lease
	// takes. A caller with another number of permits than the holders waits in its turn
	// until they have gone; then its number holds. Default of both: 1, a mutex.
	Permits, Weight int

	// Fingerprint of what is asked under the key; see Claim.
	Fingerprint Fingerprint
	// MaxAge accepts a record up to that age as the answer: Acquire then
	// returns a *DoneError with it. Default: no record does.
	MaxAge time.Duration
	// AtMostOnce refuses to run again when a holder ended without an outcome:
	// Acquire then returns an *UnknownError until somebody resolves it.
	AtMostOnce bool

	// Hold is for Reserve, Prolong and Redeem: how long the place, should it stand
	// unredeemed, may keep others from the key once its turn has come and one of them
	// wants it. Default: until the place runs out; with Redeem, what it was before.
	Hold time.Duration

	// Label tells operators what the key is held for. Default: the client's.
	Label string

	// Detach lets the lease's context outlive ctx, of which only the values are
	// kept: ctx then bounds the wait and nothing else.
	Detach bool

	// Margin is how long before the lease could be somebody else's its context
	// ends, for holders that take a while to stop. At most half of the TTL.
	// Default: a fiftieth of the TTL, and never less.
	Margin time.Duration
}

// Acquire takes the key, waiting for its turn in the order of arrival. The
// lease's context derives from ctx (but see Detach). The caller must settle the lease
// (Release, Complete or Abandon); until then it is renewed.
//
// It returns ErrHeld (with NoWait, when Wait was over, or at once when ctx comes
// from a lease on the same key, which would be waited for in vain), ErrDone (a record
// answers), ErrMismatch, ErrUnknown, ErrFull, ErrBusy, ErrClosed, ErrStore,
// or the cause with which ctx ended. In all these cases the key is not held,
// the place in the queue is given up, and a claim whose outcome could not be
// learned is undone in the background.
func (c *Client) Acquire(ctx context.Context, key string, o *AcquireOptions) (*Lease, error) {
	claim, err := c.newClaim(key, o)
	if err != nil {
		return nil, err
	}
	wait := c.waitOf(o)
	if wait == noWait {
		claim.Mode = Try
	} else if l, ok := holds(ctx, claim.Key); ok && (claim.Permits != l.claim.Permits || claim.Weight+l.claim.Weight > claim.Permits) {
		return nil, fmt.Errorf("%w by the caller itself: its context comes from a lease on it, and waiting would never end", ErrHeld)
	}
	b := bid{Claim: claim}
	if o != nil {
		b.margin, b.detach = o.Margin, o.Detach
	}
	return c.acquire(ctx, b, wait)
}

// waitOf returns how long the caller wants to wait; 0 is without limit.
func (c *Client) waitOf(o *AcquireOptions) time.Duration {
	switch {
	case o == nil:
		return c.options.Wait
	case o.NoWait:
		return noWait
	}
	return cmp.Or(o.Wait, c.options.Wait)
}

// A bid is a claim and what becomes of it when it is given up.
type bid struct {
	Claim
	// margin and detach are those of AcquireOptions.
	margin time.Duration
	detach bool
	// leave says that there is nothing to give back: the place was there before.
	leave bool
}

// newClaim validates what the caller asks for.
func (c *Client) newClaim(name string, o *AcquireOptions) (Claim, error) {
	claim := Claim{
		Key:     Key{Namespace: c.options.Namespace, Name: name},
		Token:   NewToken(),
		Mode:    Queue,
		TTL:     c.options.TTL,
		Stay:    stayNear,
		Permits: 1,
		Weight:  1,
		Owner:   c.owner,
	}
	if err := claim.Key.Validate(); err != nil {
		return claim, err
	}
	if o == nil {
		return claim, nil
	}
	switch {
	case o.TTL != 0 && o.TTL < MinTTL:
		return claim, fmt.Errorf("dibs: AcquireOptions.TTL is %v; it must be at least %v", o.TTL, MinTTL)
	case o.Wait < 0:
		return claim, fmt.Errorf("dibs: AcquireOptions.Wait is %v; it must not be negative", o.Wait)
	case o.Hold < 0:
		return claim, fmt.Errorf("dibs: AcquireOptions.Hold is %v; it must not be negative", o.Hold)
	case o.Permits < 0 || o.Permits > MaxPermits:
		return claim, fmt.Errorf("dibs: AcquireOptions.Permits is %d; it must be 1 to %d", o.Permits, MaxPermits)
	case o.Weight < 0 || o.Weight > max(o.Permits, 1):
		return claim, fmt.Errorf("dibs: AcquireOptions.Weight is %d; it must be 1 to Permits, which is %d", o.Weight, max(o.Permits, 1))
	case o.MaxAge < 0:
		return claim, fmt.Errorf("dibs: AcquireOptions.MaxAge is %v; it must not be negative", o.MaxAge)
	case o.Margin < 0 || o.Margin > cmp.Or(o.TTL, claim.TTL)/2:
		return claim, fmt.Errorf("dibs: AcquireOptions.Margin is %v; it must be 0 to half of the TTL of %v", o.Margin, cmp.Or(o.TTL, claim.TTL))
	case o.Permits > 1 && (o.AtMostOnce || o.MaxAge > 0):
		return claim, errors.New("dibs: AcquireOptions.Permits cannot be more than 1 together with AtMostOnce or MaxAge")
	}
	claim.TTL = cmp.Or(o.TTL, claim.TTL)
	claim.Permits = cmp.Or(o.Permits, 1)
	claim.Weight = cmp.Or(o.Weight, 1)
	claim.Fingerprint = o.Fingerprint
	claim.MaxAge = o.MaxAge
	claim.AtMostOnce = o.AtMostOnce
	claim.Owner.Label = cmp.Or(o.Label, claim.Owner.Label)
	return claim, nil
}

// acquire asks once and, unless the caller will not wait, waits for its turn.
func (c *Client) acquire(ctx context.Context, b bid, wait time.Duration) (lease *Lease, err error) {
	c.enter()
	defer c.leave()
	var start time.Time
	if c.options.Observe != nil {
		start = time.Now()
	}
	waited := false
	a, sent, err := c.ask(ctx, b)
	if crowded(err) && wait != noWait {
		a, sent, err = c.askPatiently(ctx, b, wait)
	}
	switch {
	case err != nil:
	case a.State == Granted:
		lease, err = c.grant(ctx, b, a, sent)
	case a.State == Held && a.Queued && wait != noWait:
		waited = true
		lease, err = c.await(ctx, b, a, sent, wait)
	default:
		err = refusal(b.Claim, a)
	}
	if err != nil {
		c.refused(ctx, &b.Claim, start, waited, err)
		return nil, err
	}
	c.acquired(lease, start, waited)
	return lease, nil
}

// noWait as the time to wait: not at all.
const noWait time.Duration = -1

// grant makes a lease of a granted claim.
func (c *Client) grant(ctx context.Context, b bid, a Answer, sent time.Time) (*Lease, error) {
	if b.detach {
		ctx = context.WithoutCancel(ctx)
	}
	return c.keep(newLease(ctx, c, b, a, sent), b)
}

// keep starts to look after a new lease.
func (c *Client) keep(lease *Lease, b bid) (*Lease, error) {
	if lease.overdue() {
		lease.end(ErrLost)
		c.undoer.undo(b.Claim)
		return nil, &StoreError{Op: "claim", Err: errors.New("the answer took longer than the lease lasts")}
	}
	if !c.renewer.add(lease) {
		lease.end(ErrClosed)
		c.undoer.undo(b.Claim)
		return nil, ErrClosed
	}
	return lease, nil
}

// A claim that fails is sent again, which is safe because claims are
// idempotent, as long as no more than askPatience would go by.
const (
	askPatience = time.Second
	askBackoff  = 20 * time.Millisecond
)

// ask sends one claim and answers with what the store said and when it was
// sent. On any error the bid is given up.
func (c *Client) ask(ctx context.Context, b bid) (Answer, time.Time, error) {
	if c.closed.Load() {
		return Answer{}, time.Time{}, ErrClosed
	}
	if ctx.Err() != nil {
		return Answer{}, time.Time{}, context.Cause(ctx)
	}
	a, sent, err := c.claims.do(ctx, c.done, b.Claim, c.orphan(b))
	if err == nil {
		if errors.Is(a.Err, ErrBusy) && ctx.Err() != nil {
			return a, sent, context.Cause(ctx) // it was the caller who had no time
		}
		return a, sent, a.Err
	}
	first, again := sent, false
	for backoff := askBackoff; c.askAgain(ctx, err) && time.Since(first)+backoff < askPatience; backoff *= 2 {
		c.sleep(ctx, backoff)
		again = true
		if a, sent, err = c.claims.do(ctx, c.done, b.Claim, c.orphan(b)); err == nil {
			if errors.Is(a.Err, ErrBusy) {
				err = a.Err
				continue
			}
			if a.Err != nil {
				c.undo(b) // nothing was done this time; who knows about the others
			}
			return a, sent, a.Err
		}
	}
	if again || !errors.Is(err, errGaveUp) {
		c.undo(b)
	}
	switch {
	case c.closed.Load():
		err = ErrClosed
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	default:
		err = &StoreError{Op: "claim", Err: err}
	}
	return a, sent, err
}

// askPatiently asks again for a key that the store was too busy with, for as long as
// the caller would wait for it.
func (c *Client) askPatiently(ctx context.Context, b bid, wait time.Duration) (a Answer, sent time.Time, err error) {
	first := time.Now()
	for {
		c.sleep(ctx, askBackoff+rand.N(askBackoff))
		a, sent, err = c.ask(ctx, b)
		if !crowded(err) || ctx.Err() != nil || wait > 0 && time.Since(first) > wait {
			return a, sent, err // the caller's own end may be the ErrBusy of another
		}
	}
}

// crowded reports whether a store was too busy with a key to do anything.
func crowded(err error) bool { return errors.Is(err, ErrBusy) && !errors.Is(err, ErrStore) }

// orphan returns what is to be done with the answer when nobody waits for it.
func (c *Client) orphan(b bid) func(Claim, Answer, error) {
	if b.Mode == Look || b.leave {
		return nil
	}
	return c.orphaned
}

// undo gives a bid up whose outcome is not known.
func (c *Client) undo(b bid) {
	if b.Mode != Look && !b.leave {
		c.undoer.undo(b.Claim)
	}
}

func (c *Client) askAgain(ctx context.Context, err error) bool {
	return !errors.Is(err, errGaveUp) && ctx.Err() == nil && !c.closed.Load()
}

// sleep waits for d, for the end of ctx or for Close.
func (c *Client) sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-c.done:
	}
}

// refusal turns an answer that is not a grant into the error that callers see.
func refusal(claim Claim, a Answer) error {
	switch a.State {
	case Held:
		return &HeldError{Key: claim.Key, Left: a.Left, Ahead: a.Ahead}
	case Done:
		return &DoneError{Key: claim.Key, Record: a.Record}
	case Mismatch:
		return ErrMismatch
	case Unknown:
		return &UnknownError{Key: claim.Key, ID: a.ID}
	}
	return &StoreError{Op: "claim", Err: fmt.Errorf("the store answered with state %d", a.State)}
}
