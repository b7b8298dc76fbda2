package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore"
)

// sqliteGroupCommit compares 64 goroutines that claim and settle keys of their
// own, sharing commits, with one that does the same one by one.
func sqliteGroupCommit(ctx context.Context, c config) (figure, error) {
	dir, err := os.MkdirTemp("", "dibs-bench-")
	if err != nil {
		return figure{}, err
	}
	defer os.RemoveAll(dir)
	store, err := sqlitestore.Open(filepath.Join(dir, "dibs.db"), nil)
	if err != nil {
		return figure{}, err
	}
	defer store.Close()
	client, err := dibs.New(store, nil)
	if err != nil {
		return figure{}, err
	}
	defer client.Close()
	cycles := func(goroutines int) func(context.Context, time.Duration) (float64, error) {
		return func(ctx context.Context, d time.Duration) (float64, error) {
			return cyclesPerSecond(ctx, client, goroutines, d)
		}
	}
	return interleave(ctx, c, "claim+settle/s, each on stable storage before it is answered", cycles(64), cycles(1))
}

// cyclesPerSecond lets goroutines take and release keys of their own for d.
func cyclesPerSecond(ctx context.Context, client *dibs.Client, goroutines int, d time.Duration) (float64, error) {
	var n atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	start := time.Now()
	for g := range goroutines {
		wg.Go(func() {
			for i := 0; time.Since(start) < d; i++ {
				lease, err := client.Acquire(ctx, fmt.Sprintf("goroutine %d, cycle %d", g, i), nil)
				if err == nil {
					err = lease.Release()
				}
				if err != nil {
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
