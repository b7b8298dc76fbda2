package dibs

import (
	"context"
	"math/rand/v2"
	"time"
)

// A call of the store that failed for a reason that may pass is made again after a pause,
// which doubles from retryMin to retryMax. Half of each pause is by chance, so that
// callers that met once do not meet again.
const (
	retryMin = 20 * time.Millisecond
	retryMax = time.Second
)

// How long a call is made again.
const (
	// askPatience is for a claim whose caller may have something else to do, such as to
	// answer a request.
	askPatience = time.Second
	// keepPatience is for what has been waited for or worked for: a place in the queue, a
	// result.
	keepPatience = 10 * time.Second
	// Options.Timeout is for everything else.
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

// again waits for the next try. It reports false, at once, when that would be later than
// the patience allows, and when ctx has ended or the client is closed.
func (c *Client) again(ctx context.Context, r *retry, patience time.Duration) bool {
	pause := r.next()
	if time.Since(r.began)+pause > patience {
		return false
	}
	c.sleep(ctx, pause)
	return ctx.Err() == nil && !c.closed.Load()
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
