//go:build nightly

package sqllock

import (
	"context"
	"sync"
	"testing"
	"time"
)

// Waits are given up at any moment, some of them in that of the grant, and leave nothing behind.
func TestSessionLockGivenUp(t *testing.T) {
	onLocks(t, func(t *testing.T, k lockKind) {
		var all sync.WaitGroup
		for range 8 {
			l := k.process()
			all.Go(func() {
				for i := range 125 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%10)*time.Millisecond)
					_ = l.Do(ctx, "x", &LockOptions{Wait: time.Duration(1+i%2*1500) * time.Millisecond}, func(context.Context) error { return nil })
					cancel()
				}
			})
		}
		all.Wait()
		k.free(t, "x")
	})
}
