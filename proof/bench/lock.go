package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
)

// A locker takes a key, runs a section under it and gives it back: what is the
// same for dibs and its peers. It waits for its turn.
type locker interface {
	lock(ctx context.Context, key string, section func()) error
}

type dibsLocker struct{ client *dibs.Client }

func (l dibsLocker) lock(ctx context.Context, key string, section func()) error {
	lease, err := l.client.Acquire(ctx, key, nil)
	if err != nil {
		return err
	}
	section()
	return lease.Release()
}

// stuck is how long a measurement may take longer than it should.
const stuck = time.Minute

// lockRate lets goroutines take and release keys of their own for d, and
// returns how often they did a second.
func lockRate(ctx context.Context, l locker, goroutines int, d time.Duration) (float64, error) {
	return rate(ctx, goroutines, d, func(ctx context.Context, g, i int) error {
		return l.lock(ctx, fmt.Sprintf("goroutine %d, cycle %d", g, i), func() {})
	})
}

// rate lets goroutines repeat an action for d, and returns how often they did per second. Each
// call gets the goroutine's number and the count of its actions. A stuck action ends with its
// context.
func rate(ctx context.Context, goroutines int, d time.Duration, do func(ctx context.Context, g, i int) error) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, d+stuck)
	defer cancel()
	var n atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	start := time.Now()
	for g := range goroutines {
		wg.Go(func() {
			for i := 0; time.Since(start) < d && failed.Load() == nil; i++ {
				if err := do(ctx, g, i); err != nil {
					failed.Store(&err)
					return
				}
				n.Add(1)
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return float64(n.Load()) / time.Since(start).Seconds(), nil
}
