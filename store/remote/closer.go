package remote

import (
	"context"
	"sync"
)

// Closer knows whether a store is open, and ends its work in the background.
type Closer struct {
	closed error // what calls of a closed store return

	ctx  context.Context
	end  context.CancelFunc
	mu   sync.Mutex
	work sync.WaitGroup
}

// NewCloser returns the Closer of a store that is open. Once it is closed, calls return
// that error.
func NewCloser(closed error) *Closer {
	c := &Closer{closed: closed}
	c.ctx, c.end = context.WithCancel(context.Background())
	return c
}

// Usable returns an error if the store is closed or ctx has ended.
func (c *Closer) Usable(ctx context.Context) error {
	if c.ctx.Err() != nil {
		return c.closed
	}
	return ctx.Err()
}

// Context returns a context that ends when the store is closed.
func (c *Closer) Context() context.Context { return c.ctx }

// Go has f work in the background until its context ends. It does nothing if the store is
// closed.
func (c *Closer) Go(f func(ctx context.Context)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() == nil {
		c.work.Go(func() { f(c.ctx) })
	}
}

// Close ends the work in the background and waits for that. It reports whether this was
// the first call.
func (c *Closer) Close() (first bool) {
	c.mu.Lock()
	first = c.ctx.Err() == nil
	c.end()
	c.mu.Unlock()
	c.work.Wait()
	return first
}
