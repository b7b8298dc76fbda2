package dibs

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Leases are the leases of several keys, held together.
type Leases struct {
	held []*Lease // the context of each derives from the context of the one before
}

// AcquireAll takes several keys, all or none. It takes them one after the other, in an order
// that is the same in every process, so callers whose keys overlap cannot deadlock. A key
// that is named twice is taken once. Wait, of the options or of the client, is for all of
// them together. With Detach, ctx bounds the wait for each of them.
//
// It returns the errors of Acquire, and ErrLost when one key was lost while it waited for
// another. After an error none of the keys is held.
func (c *Client) AcquireAll(ctx context.Context, keys []string, o *AcquireOptions) (*Leases, error) {
	if len(keys) == 0 {
		return nil, errors.New("dibs: AcquireAll was given no key")
	}
	limit := c.waitOf(o)
	start := time.Now()
	all := &Leases{}
	waiting, parent := ctx, o.parent(ctx)
	for _, key := range slices.Compact(slices.Sorted(slices.Values(keys))) {
		wait := limit
		if limit != anyWait {
			// Not 0, because a free key can still be taken at once.
			wait = max(limit-time.Since(start), time.Millisecond)
		}
		lease, err := c.acquireUnder(waiting, parent, key, o, wait)
		if err != nil {
			return nil, errors.Join(err, all.Release())
		}
		all.held = append(all.held, lease)
		waiting, parent = lease.Context(), lease.Context()
		if o != nil && o.Detach {
			var end func()
			waiting, end = endWith(parent, ctx)
			defer end()
		}
	}
	return all, nil
}

// endWith returns a context that derives from ctx and ends when other ends, too, with the
// same cause. end frees it.
func endWith(ctx, other context.Context) (joined context.Context, end func()) {
	joined, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	if other.Err() != nil {
		cancel(context.Cause(other)) // now, because AfterFunc is another goroutine
	}
	return joined, func() { stop(); cancel(nil) }
}

// Context ends when one of the leases is lost, with that lease's cause, and when they are
// released.
func (a *Leases) Context() context.Context { return a.held[len(a.held)-1].Context() }

// Lease returns the lease of one of the keys, or nil for another key.
func (a *Leases) Lease(key string) *Lease {
	for _, l := range a.held {
		if l.Key().Name == key {
			return l
		}
	}
	return nil
}

// Release ends all the leases at the same time. It returns the joined errors of
// Lease.Release.
func (a *Leases) Release() error {
	errs := make([]error, len(a.held))
	var all sync.WaitGroup
	for i, l := range a.held {
		all.Go(func() { errs[i] = l.Release() })
	}
	all.Wait()
	return errors.Join(errs...)
}

// DoAll is Do for several keys: it waits until it holds all of them and runs fn. See
// AcquireAll for the order, and Do for what it returns.
func (c *Client) DoAll(ctx context.Context, keys []string, fn func(context.Context) error) (err error) {
	if fn == nil {
		return noFunction("DoAll")
	}
	all, err := c.AcquireAll(ctx, keys, nil)
	if err != nil {
		return err
	}
	defer func() {
		if lost := all.Release(); errors.Is(lost, ErrLost) {
			err = errors.Join(err, ErrLost)
		}
	}()
	return fn(all.Context())
}
