package dibs

import (
	"context"
	"math"
	"math/rand/v2"
	"time"
)

// How long a caller waits: not at all, or for as long as its context allows.
const (
	noWait  time.Duration = -1
	anyWait time.Duration = math.MaxInt64
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

// retry returns a function that waits for the next try of a call that began at that moment.
// again returns false at once if the next try would be later than the patience allows, and
// false if ctx ends or stop is closed.
func retry(ctx context.Context, stop <-chan struct{}, began time.Time) (again func(patience time.Duration) bool) {
	var pause time.Duration
	return func(patience time.Duration) bool {
		pause = min(max(2*pause, retryMin), retryMax)
		wait := pause/2 + rand.N(pause/2)
		if time.Since(began)+wait > patience {
			return false
		}
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-stop:
		}
		select {
		case <-stop:
			return false
		default:
			return ctx.Err() == nil
		}
	}
}
