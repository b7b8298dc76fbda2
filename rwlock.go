package dibs

import (
	"context"
	"errors"
)

// RLock takes the key as one of many readers, and Lock as its only writer: a reader takes
// one of MaxPermits permits, and a writer all of them. Readers and writers are granted in
// the order in which they came, so that neither starves: a reader that comes after a
// waiting writer waits, too. A caller of Do or Acquire, who sees the key as a mutex,
// excludes both.
//
// A reader must not ask for the key again: a writer that came in between would wait for the
// first lease, and the second one for that writer.
//
// They are Acquire in all else. Of the options, Permits and Weight must be 0.
func (c *Client) RLock(ctx context.Context, key string, o *AcquireOptions) (*Lease, error) {
	return c.lock(ctx, key, o, 1)
}

// Lock takes the key as its only writer; see RLock.
func (c *Client) Lock(ctx context.Context, key string, o *AcquireOptions) (*Lease, error) {
	return c.lock(ctx, key, o, MaxPermits)
}

func (c *Client) lock(ctx context.Context, key string, o *AcquireOptions, weight int) (*Lease, error) {
	var shared AcquireOptions
	if o != nil {
		shared = *o
	}
	if shared.Permits != 0 || shared.Weight != 0 {
		return nil, errors.New("dibs: AcquireOptions.Permits and Weight are not for RLock and Lock, which set them")
	}
	shared.Permits, shared.Weight = MaxPermits, weight
	return c.Acquire(ctx, key, &shared)
}
