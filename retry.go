package dibs

import (
	"context"
	"math"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
)

// How long a caller waits: not at all, or for as long as its context allows.
const (
	noWait  time.Duration = -1
	anyWait time.Duration = math.MaxInt64
)

// retryPause is the pause before a call of the store is made again that failed for a reason that
// may pass.
var retryPause = backoff.Exponential{Min: 20 * time.Millisecond, Max: time.Second}

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
	failed := 0
	return func(patience time.Duration) bool {
		failed++
		pause := retryPause.Pause(failed)
		if time.Since(began)+pause > patience {
			return false
		}
		timer := time.NewTimer(pause)
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
