package idempotency

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestStoreLimitIsAContext: contexts may derive from the limit while it lasts and after it, because
// a store may keep a context longer than its call.
func TestStoreLimitIsAContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &Middleware{options: Options{StoreTimeout: time.Hour}}
		check := func(name string, ctx context.Context, want error) {
			t.Helper()
			synctest.Wait()
			if ctx.Err() != want {
				t.Errorf("%s: the error is %v, want %v", name, ctx.Err(), want)
			}
		}
		derive := func(l *storeLimit) context.Context {
			ctx, cancel := context.WithCancel(l)
			t.Cleanup(cancel)
			return ctx
		}

		used := m.withStoreLimit(t.Context())
		before := derive(used)
		check("before the call ends", before, nil)
		used.stop()
		check("after the call", before, context.DeadlineExceeded)
		check("derived after the call", derive(used), context.DeadlineExceeded)

		unused := m.withStoreLimit(t.Context())
		unused.stop()
		check("derived after a call that did not wait", derive(unused), context.DeadlineExceeded)

		late := m.withStoreLimit(t.Context())
		child := derive(late)
		time.Sleep(time.Hour)
		check("after the time", child, context.DeadlineExceeded)
		late.stop()
		check("stopped after the time", derive(late), context.DeadlineExceeded)
	})
}
