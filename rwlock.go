package dibs

import (
	"context"
	"errors"

	"github.com/dibs-go/dibs/store"
)

// RLock takes the key as one of many readers, and Lock takes it as the only writer: a reader
// takes one of MaxPermits permits, a writer all of them. Readers and writers get the key in
// the order in which they arrive, so neither starves: a reader that arrives after a waiting
// writer waits, too. Do and Acquire use the key as a mutex and exclude both.
//
// A reader must not ask for the key again, because both could wait forever: a writer that
// arrived in between waits for the first lease, and the second RLock waits for that writer.
//
// In all else they are Acquire. Of the options, Permits, Weight, MaxAge and AtMostOnce
// must be zero, because readers share the key.
func (c *Client) RLock(ctx context.Context, key string, o *AcquireOptions) (*Lease, error) {
	return c.lock(ctx, key, o, 1)
}

// Lock takes the key as its only writer; see RLock.
func (c *Client) Lock(ctx context.Context, key string, o *AcquireOptions) (*Lease, error) {
	return c.lock(ctx, key, o, store.MaxPermits)
}

func (c *Client) lock(ctx context.Context, key string, o *AcquireOptions, weight int) (*Lease, error) {
	var shared AcquireOptions
	if o != nil {
		shared = *o
	}
	if shared.Permits != 0 || shared.Weight != 0 || shared.MaxAge != 0 || shared.AtMostOnce {
		return nil, errors.New("dibs: AcquireOptions.Permits, Weight, MaxAge and AtMostOnce are not for RLock and Lock, because readers share the key")
	}
	shared.Permits, shared.Weight = store.MaxPermits, weight
	return c.Acquire(ctx, key, &shared)
}
