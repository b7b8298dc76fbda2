package dibs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/store"
)

// AcquireOptions are what one call asks for. The zero value and nil mean a mutex, and the
// defaults of the Client's Options.
type AcquireOptions struct {
	// TTL of the lease. At least MinTTL. Default: the client's.
	TTL time.Duration

	// Wait is how long to wait before giving up with ErrHeld. Default: the client's. 0 does
	// not mean no wait; see TryAcquire.
	Wait time.Duration

	// Permits is how many permits the key has. Weight is how many of them the lease takes.
	// If the holders have another number of permits, the caller waits until they have
	// ended. Default of both: 1, a mutex.
	Permits, Weight int

	// Fingerprint of what is asked under the key: a caller with another one gets
	// ErrMismatch. Default: none.
	Fingerprint Fingerprint
	// MaxAge accepts a record up to that age as the answer: Acquire then returns a
	// *DoneError with it. Default: no record is accepted.
	MaxAge time.Duration
	// AtMostOnce refuses to run again after a holder ended without an outcome: Acquire then
	// returns an *UnknownError until an operator resolves it.
	AtMostOnce bool

	// Label tells operators what the key is held for. Default: the client's.
	Label string

	// Detach lets the lease's context outlive ctx. The lease's context then has only the
	// values of ctx, and ctx bounds only the wait.
	Detach bool

	// StopTimeout is how long the lease's context ends before another caller can get the key,
	// for holders that take a while to stop. At most half of the TTL. Default, and at
	// least: a fiftieth of the TTL.
	StopTimeout time.Duration

	// MaxLifetime is how long the lease may last in all, renewals included. Then its context
	// ends with cause ErrLost, it is not renewed any more, and another caller can get the
	// key within TTL, even if the holder hangs. Default: no limit.
	MaxLifetime time.Duration
}

// Acquire takes the key. Callers get it in the order in which they arrive. The lease's
// context derives from ctx (but see Detach). The lease is renewed until the caller settles
// it with Release, Complete, Abandon or Undo.
//
// Acquire returns ErrHeld when Wait is over. It returns ErrHeld at once when ctx comes from
// leases on the same key that leave no room, because that wait would never end. It returns
// ErrDone when a record answers, and otherwise ErrMismatch, ErrUnknown, ErrFull, ErrBusy,
// ErrClosed, ErrStore, or the cause with which ctx ended. In all these cases the caller
// neither holds the key nor has a place in its queue, and a claim whose outcome is unknown
// is undone in the background.
func (c *Client) Acquire(ctx context.Context, key string, o *AcquireOptions) (*Lease, error) {
	return c.acquireUnder(ctx, o.parent(ctx), key, o, c.waitOf(o))
}

// TryAcquire is Acquire without waiting: it returns ErrHeld at once if the key is held or
// others wait for it. Of the options, Wait must be 0.
func (c *Client) TryAcquire(ctx context.Context, key string, o *AcquireOptions) (*Lease, error) {
	if o != nil && o.Wait != 0 {
		return nil, errors.New("dibs: AcquireOptions.Wait is not for TryAcquire, which does not wait")
	}
	return c.acquireUnder(ctx, o.parent(ctx), key, o, noWait)
}

// acquireUnder takes the key, with the context from which that of the lease derives.
func (c *Client) acquireUnder(ctx, parent context.Context, key string, o *AcquireOptions, wait time.Duration) (*Lease, error) {
	claim, err := c.newClaim(key, o)
	if err != nil {
		return nil, err
	}
	if wait == noWait {
		claim.Mode = store.Try
	} else if waitsForItself(ctx, claim) {
		return nil, fmt.Errorf("%w by the caller itself: its context comes from a lease on it, and waiting would never end", ErrHeld)
	}
	r := request{Claim: claim, parent: parent}
	if o != nil {
		r.stopTimeout, r.maxLifetime = o.StopTimeout, o.MaxLifetime
	}
	return c.acquire(ctx, r, wait)
}

// waitsForItself reports whether the claim would wait forever, because the code that was
// given ctx runs under leases on the key that leave no room for the claim.
func waitsForItself(ctx context.Context, c store.Claim) bool {
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

func (c *Client) waitOf(o *AcquireOptions) time.Duration {
	if o == nil {
		return cmp.Or(c.options.Wait, anyWait)
	}
	return cmp.Or(o.Wait, c.options.Wait, anyWait)
}

// parent returns what the context of a lease derives from that is acquired with ctx.
func (o *AcquireOptions) parent(ctx context.Context) context.Context {
	if o != nil && o.Detach {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

// newClaim validates what the caller asks for.
func (c *Client) newClaim(name string, o *AcquireOptions) (store.Claim, error) {
	claim := store.Claim{
		Key:      c.Key(name),
		Token:    store.NewToken(),
		Mode:     store.Queue,
		TTL:      c.options.TTL,
		PlaceTTL: backoff.PlaceTTL(0),
		Permits:  1,
		Weight:   1,
		Owner:    c.owner,
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
	case o.Permits < 0 || o.Permits > store.MaxPermits:
		return claim, fmt.Errorf("dibs: AcquireOptions.Permits is %d; it must be 1 to %d", o.Permits, store.MaxPermits)
	case o.Weight < 0 || o.Weight > max(o.Permits, 1):
		return claim, fmt.Errorf("dibs: AcquireOptions.Weight is %d; it must be 1 to Permits, which is %d", o.Weight, max(o.Permits, 1))
	case o.MaxAge < 0:
		return claim, fmt.Errorf("dibs: AcquireOptions.MaxAge is %v; it must not be negative", o.MaxAge)
	case o.StopTimeout < 0 || o.StopTimeout > cmp.Or(o.TTL, claim.TTL)/2:
		return claim, fmt.Errorf("dibs: AcquireOptions.StopTimeout is %v; it must be 0 to half of the TTL of %v", o.StopTimeout, cmp.Or(o.TTL, claim.TTL))
	case o.MaxLifetime < 0:
		return claim, fmt.Errorf("dibs: AcquireOptions.MaxLifetime is %v; it must not be negative", o.MaxLifetime)
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

// acquire asks once and, unless the caller does not wait, waits for its turn.
func (c *Client) acquire(ctx context.Context, r request, wait time.Duration) (lease *Lease, err error) {
	c.enter()
	defer c.leave()
	if c.observe != nil {
		r.start = time.Now()
	}
	a, sent, err := c.ask(ctx, r, wait)
	switch {
	case err != nil:
	case a.State == store.Granted:
		lease, err = c.grant(r, a, sent)
	case a.State == store.Held && wait != noWait:
		r.queued = true
		lease, err = c.await(ctx, r, a, sent, wait)
	default:
		err = refusal(r.Claim, a)
	}
	if err != nil {
		c.refused(ctx, &r, err)
		return nil, err
	}
	c.acquired(lease)
	return lease, nil
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
