package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/dibs-go/dibs/stores/sqlitestore"
)

// alone measures how long one caller takes to claim a free key and to settle it, by the median.
func alone(open opener, beside ...string) func(context.Context, config) (figure, error) {
	return measureAll(open, beside, "ms", func(ctx context.Context, c config, lockers []locker, key string) (float64, error) {
		return middle(ctx, c.round, func(ctx context.Context, key string, took func(time.Duration)) error {
			began := time.Now()
			err := lockers[0].lock(ctx, key, func() {})
			took(time.Since(began))
			return err
		})
	})
}

// openSQLite makes a file, which waits for its disk.
func openSQLite(context.Context) (b *candidates, err error) {
	b = newCandidates()
	defer func() {
		if err != nil {
			b.end()
		}
	}()
	dir, err := os.MkdirTemp("", "dibs-bench-")
	if err != nil {
		return b, err
	}
	b.close = append(b.close, func() { _ = os.RemoveAll(dir) })
	store, err := sqlitestore.Open(filepath.Join(dir, "dibs.db"), nil)
	if err != nil {
		return b, fmt.Errorf("SQLite: %w", err)
	}
	return b, b.enter(store, store.Close)
}
