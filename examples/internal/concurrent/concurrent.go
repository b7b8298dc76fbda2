// Package concurrent runs callers at the same moment. In production it is luck whether
// they disturb each other. The examples make it certain: a caller waits at a barrier until
// all have arrived.
package concurrent

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

// Barrier is a point at which callers wait for one another.
type Barrier struct {
	missing atomic.Int64
	all     chan struct{}
}

// NewBarrier returns a Barrier of n callers.
func NewBarrier(n int) *Barrier {
	m := &Barrier{all: make(chan struct{})}
	m.missing.Store(int64(n))
	return m
}

// Arrive counts one more caller. Calls after the last one do nothing.
func (m *Barrier) Arrive() {
	if m.missing.Add(-1) == 0 {
		close(m.all)
	}
}

// Wait waits until all have arrived. It returns the context's cause if ctx ends first.
func (m *Barrier) Wait(ctx context.Context) error {
	select {
	case <-m.all:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
