package main

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/stores/sqlitestore"
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
			return lockRate(ctx, dibsLocker{client}, goroutines, d)
		}
	}
	return interleave(ctx, c, "claim+settle/s, each on stable storage before it is answered", cycles(64), cycles(1))
}
