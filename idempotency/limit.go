package idempotency

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
)

// errStoreTimeout ends calls of the store after Options.StoreTimeout.
var errStoreTimeout = fmt.Errorf("idempotency: %w in time: %w", dibs.ErrStore, context.DeadlineExceeded)

// A storeLimit is a context that ends after Options.StoreTimeout, or when stop is called. Its timer
// starts when the store waits for its end, because a timer for each request costs more than all
// else in a replay from a store in memory, which does not wait.
type storeLimit struct {
	context.Context
	end     time.Time
	once    sync.Once
	timed   context.Context
	cancel  context.CancelFunc
	stopped atomic.Bool
}

// withStoreLimit returns a context with the values of ctx, which does not end with ctx.
func (m *Middleware) withStoreLimit(ctx context.Context) *storeLimit {
	return &storeLimit{Context: context.WithoutCancel(ctx), end: time.Now().Add(m.options.StoreTimeout)}
}

func (l *storeLimit) start() context.Context {
	l.once.Do(func() { l.timed, l.cancel = context.WithDeadlineCause(l.Context, l.end, errStoreTimeout) })
	return l.timed
}

var over, _ = context.WithDeadline(context.Background(), time.Time{}) // has ended

func (l *storeLimit) stop() {
	l.stopped.Store(true) // first, because an ended context has an error
	l.once.Do(func() { l.timed, l.cancel = over, func() {} })
	l.cancel()
}

func (l *storeLimit) Deadline() (time.Time, bool) { return l.end, true }
func (l *storeLimit) Done() <-chan struct{}       { return l.start().Done() }

func (l *storeLimit) Err() error {
	if time.Now().Before(l.end) && !l.stopped.Load() {
		return nil
	}
	return context.DeadlineExceeded
}

// AfterFunc spares package context a goroutine for each context that derives from this one.
func (l *storeLimit) AfterFunc(f func()) (stop func() bool) { return context.AfterFunc(l.start(), f) }
