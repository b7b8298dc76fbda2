package dibs

import (
	"context"
	"math/rand/v2"
	"time"
)

// A call of the store that failed for a reason that may pass is made again after a pause.
// Pauses double from retryMin to retryMax. Half of each is random, because callers that
// collided once must not collide again.
const (
	retryMin = 20 * time.Millisecond
	retryMax = time.Second
)

// How long a call is made again. Options.Timeout is for everything else.
const (
	// askPatience is for a claim whose caller may have a request to answer.
	askPatience = time.Second
	// keepPatience is for what was waited for or worked for: a place in the queue, a
	// result.
	keepPatience = 10 * time.Second
)

// retry paces the tries of one call.
type retry struct {
	began time.Time
	pause time.Duration
}

// next returns the pause before the next try.
func (r *retry) next() time.Duration {
	r.pause = min(max(2*r.pause, retryMin), retryMax)
	return r.pause/2 + rand.N(r.pause/2)
}

// again waits for the next try. It returns false at once if the next try would be later
// than the patience allows, and false if ctx ends or the client is closed.
func (c *Client) again(ctx context.Context, r *retry, patience time.Duration) bool {
	pause := r.next()
	if time.Since(r.began)+pause > patience {
		return false
	}
	sleep(ctx, c.done, pause)
	return ctx.Err() == nil && !c.closed.Load()
}

// sleep waits for d, for the end of ctx or for stop.
func sleep(ctx context.Context, stop <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-stop:
	}
}
