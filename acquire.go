package dibs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
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
	// Acquire then returns an *UnknownError until an operator resolves it.
	AtMostOnce bool

	// Hold is for Reserve, Prolong and Redeem: how long the place may keep other callers
	// from a free key while no caller redeems it. It counts from when the first of them
	// could have had the key but for a reserved place. Default: until the place runs
	// out; with Redeem, what it was before.
	Hold time.Duration

	// Label tells operators what the key is held for. Default: the client's.
	Label string

	// Detach lets the lease's context outlive ctx, of which only the values are
	// kept: ctx then bounds the wait and nothing else.
	Detach bool

	// Margin is how long the lease's context ends before another caller could have the
	// key, for holders that take a while to stop. At most half of the TTL.
	// Default: a fiftieth of the TTL, and never less.
	Margin time.Duration
}

// Acquire takes the key, waiting for its turn in the order of arrival. The
// lease's context derives from ctx (but see Detach). The caller must settle the lease
// (Release, Complete or Abandon); until then it is renewed.
//
// It returns ErrHeld (with NoWait, when Wait was over, or at once when ctx comes from
// leases on the same key that leave no room, which would be waited for in vain),
// ErrDone (a record answers), ErrMismatch, ErrUnknown, ErrFull, ErrBusy, ErrClosed,
// ErrStore, or the cause with which ctx ended. In all these cases the key is not held,
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
	} else if claim.waitsForItself(ctx) {
		return nil, fmt.Errorf("%w by the caller itself: its context comes from a lease on it, and waiting would never end", ErrHeld)
	}
	b := bid{Claim: claim}
	if o != nil {
		b.margin, b.detach = o.Margin, o.Detach
	}
	return c.acquire(ctx, b, wait)
}

// How long a caller waits: not at all, or for as long as its context allows.
const (
	noWait  time.Duration = -1
	anyWait time.Duration = math.MaxInt64
)

// waitOf returns how long the caller wants to wait.
func (c *Client) waitOf(o *AcquireOptions) time.Duration {
	switch {
	case o == nil:
		return cmp.Or(c.options.Wait, anyWait)
	case o.NoWait:
		return noWait
	}
	return cmp.Or(o.Wait, c.options.Wait, anyWait)
}

// A bid is a claim and what becomes of it when it is given up.
type bid struct {
	Claim
	// margin and detach are those of AcquireOptions.
	margin time.Duration
	detach bool
	// start is when it was made, for the observer, and queued that its turn is waited for.
	start  time.Time
	queued bool
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
	if c.options.Observe != nil {
		b.start = time.Now()
	}
	a, sent, err := c.ask(ctx, b, wait)
	switch {
	case err != nil:
	case a.State == Granted:
		lease, err = c.grant(ctx, b, a, sent)
	case a.State == Held && a.Queued && wait != noWait:
		b.queued = true
		lease, err = c.await(ctx, b, a, sent, wait)
	default:
		err = refusal(b.Claim, a)
	}
	if err != nil {
		c.refused(ctx, &b, err)
		return nil, err
	}
	c.acquired(lease)
	return lease, nil
}

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

// ask sends one claim and answers with what the store said and when it was sent. A claim
// that failed is sent again, which is safe because claims are idempotent; one that found
// the store busy with the key, for as long as the caller would wait for it. On any error
// the bid is given up.
func (c *Client) ask(ctx context.Context, b bid, wait time.Duration) (a Answer, sent time.Time, err error) {
	if c.closed.Load() {
		return a, sent, ErrClosed
	}
	if ctx.Err() != nil {
		return a, sent, context.Cause(ctx)
	}
	var r retry
	unknown := false
	for {
		a, sent, err = c.claims.do(ctx, c.done, b.Claim, c.orphan(b))
		if err == nil && a.Err == nil {
			return a, sent, nil
		}
		if err == errGaveUp || err == nil && !errors.Is(a.Err, ErrBusy) {
			break
		}
		patience := askPatience
		if err == nil {
			patience = wait
		}
		unknown = unknown || err != nil
		if r.began.IsZero() {
			r.began = sent
		}
		if !c.again(ctx, &r, patience) {
			break
		}
	}
	if unknown {
		c.undo(b)
	}
	switch {
	case c.closed.Load():
		err = ErrClosed
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case err != nil:
		err = &StoreError{Op: "claim", Err: err}
	default:
		err = a.Err
	}
	return a, sent, err
}

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
