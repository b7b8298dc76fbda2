package idempotency

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
)

// errStoreTimeout ends calls of the store after Options.StoreTimeout.
var errStoreTimeout = fmt.Errorf("idempotency: %w in time: %w", dibs.ErrStore, context.DeadlineExceeded)

// A storeLimit is a context that ends after Options.StoreTimeout. Its timer starts when the store
// waits for it, because a timer takes a third of what a replay from a store in memory costs.
type storeLimit struct {
	context.Context
	end    time.Time
	once   sync.Once
	timed  context.Context
	cancel context.CancelFunc
}

// withStoreLimit returns a context with the values of ctx, which does not end with ctx.
func (m *Middleware) withStoreLimit(ctx context.Context) *storeLimit {
	return &storeLimit{Context: context.WithoutCancel(ctx), end: time.Now().Add(m.options.StoreTimeout)}
}

func (l *storeLimit) start() context.Context {
	l.once.Do(func() { l.timed, l.cancel = context.WithDeadlineCause(l.Context, l.end, errStoreTimeout) })
	return l.timed
}

func (l *storeLimit) stop() {
	l.once.Do(func() { l.timed, l.cancel = l.Context, func() {} })
	l.cancel()
}

func (l *storeLimit) Deadline() (time.Time, bool) { return l.end, true }
func (l *storeLimit) Done() <-chan struct{}       { return l.start().Done() }

func (l *storeLimit) Err() error {
	if time.Now().Before(l.end) {
		return nil
	}
	return context.DeadlineExceeded
}

// Value lets context.Cause find errStoreTimeout.
func (l *storeLimit) Value(key any) any {
	if l.Err() != nil {
		return l.start().Value(key)
	}
	return l.Context.Value(key)
}

// AfterFunc spares package context a goroutine for each context that derives from this one.
func (l *storeLimit) AfterFunc(f func()) (stop func() bool) { return context.AfterFunc(l.start(), f) }
