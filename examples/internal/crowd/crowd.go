// Package crowd runs callers that come at the same moment. In production such collisions
// are a matter of luck. Here they are certain, because no caller goes on until all have
// come to the same point.
package crowd

import (
	"context"
	"sync"
	"sync/atomic"
)

// Run calls fn n times at once, with 0 to n-1, and returns when all calls have returned.
// The first error ends the others' context and is returned.
func Run(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			if err := fn(ctx, i); err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// Meeting is a point at which callers wait for each other.
type Meeting struct {
	missing atomic.Int64
	all     chan struct{}
}

// NewMeeting returns a Meeting of n callers.
func NewMeeting(n int) *Meeting {
	m := &Meeting{all: make(chan struct{})}
	m.missing.Store(int64(n))
	return m
}

// Come says that one more caller has arrived. More than n calls do no harm.
func (m *Meeting) Come() {
	if m.missing.Add(-1) == 0 {
		close(m.all)
	}
}

// Wait waits until n callers have arrived. It returns the context's cause when that ends
// first.
func (m *Meeting) Wait(ctx context.Context) error {
	select {
	case <-m.all:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
