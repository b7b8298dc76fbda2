package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Exponential is how long to pause before a failed call is made again. The pause doubles with each
// failure, from Min to Max. Up to half of it is taken off at random, because callers that
// collided once must not collide again.
type Exponential struct{ Min, Max time.Duration }

// Pause returns the pause after that many failures in a row, 1 or more.
func (b Exponential) Pause(failed int) time.Duration {
	d, doubled := b.Max, max(failed-1, 0)
	if b.Max>>doubled >= b.Min {
		d = b.Min << doubled
	}
	return d - rand.N(d/2+1)
}

// Wait waits for Pause. If ctx ends first, it returns the cause.
func (b Exponential) Wait(ctx context.Context, failed int) error {
	return Sleep(ctx, b.Pause(failed))
}

// Sleep waits for d. If ctx ends first, it returns the cause.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
