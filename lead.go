package dibs

import (
	"context"
	"errors"
	"time"
)

// Lead runs fn while this process is the leader: the one process that holds the key. All
// other processes that call Lead with the key wait in its queue.
//
// The context that fn gets carries the lease (see FromContext) and ends with cause ErrLost
// when leadership is lost. fn must then return. Lead ignores what fn returns in that case,
// waits for leadership again, and calls fn again. A lost leader cannot be stopped at once,
// because its process may pause. A resource that must not be written by two leaders
// checks Lease.Fence.
//
// If fn returns while it leads, with or without an error, Lead gives leadership up and
// returns what fn returned. Lead also returns when ctx ends or the client is closed: fn's
// context ends then, too. If fn does not run, Lead returns the cause or ErrClosed.
//
// While the store does not answer or is busy with the key, Lead asks again. It returns
// all other errors of Acquire. Of the options, Wait and Detach must be zero, because
// Lead waits until ctx ends.
func (c *Client) Lead(ctx context.Context, key string, o *AcquireOptions, fn func(context.Context) error) error {
	if fn == nil {
		return noFunction("Lead")
	}
	var campaign AcquireOptions
	if o != nil {
		campaign = *o
	}
	if campaign.Wait != 0 || campaign.Detach {
		return errors.New("dibs: AcquireOptions.Wait and Detach are not for Lead, which waits until its context ends")
	}
	campaign.Wait = anyWait
	again := retry(ctx, c.done, time.Now())
	for {
		lease, err := c.Acquire(ctx, key, &campaign)
		if errors.Is(err, ErrStore) || errors.Is(err, ErrBusy) {
			again(anyWait) // Acquire says why if it is time to stop
			continue
		}
		if err != nil {
			return err
		}
		again = retry(ctx, c.done, time.Now())
		if err = lease.run(fn); !isLoss(context.Cause(lease.Context())) {
			return err
		}
	}
}
