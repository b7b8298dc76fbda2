// Package crowd has callers who come at the same moment. What goes wrong between
// them in production is a matter of luck; the examples arrange for it to be
// certain, by letting nobody go on until all have come to the same point.
package crowd

import (
	"context"
	"sync"
	"sync/atomic"
)

// Run calls fn n times at once, with 0 to n-1, and returns when all have returned.
// The first error ends the context of the others, and is the one that is returned.
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

// Meeting is a point at which callers wait for one another.
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

// Come says that one more is there. When all are, more do no harm.
func (m *Meeting) Come() {
	if m.missing.Add(-1) == 0 {
		close(m.all)
	}
}

// Wait waits until all are there. It returns the context's cause when that ends.
func (m *Meeting) Wait(ctx context.Context) error {
	select {
	case <-m.all:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
