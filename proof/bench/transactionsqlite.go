package main

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore"
)

// sqliteTransactionRate compares transactions on SQLite that are made exactly once
// with the same as they are. A file has one writer at a time, so the bare ones have
// one connection, which is the fastest that they can have.
func sqliteTransactionRate(goroutines int) func(context.Context, config) (figure, error) {
	return func(ctx context.Context, c config) (figure, error) {
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
		db, err := store.OpenDB()
		if err != nil {
			return figure{}, err
		}
		defer db.Close()
		one, err := store.OpenDB()
		if err != nil {
			return figure{}, err
		}
		defer one.Close()
		one.SetMaxOpenConns(1)
		if _, err := db.ExecContext(ctx, "CREATE TABLE ledger (id INTEGER PRIMARY KEY, account TEXT NOT NULL, amount INTEGER NOT NULL)"); err != nil {
			return figure{}, err
		}
		enter := func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO ledger (account, amount) VALUES (?, ?)", "cus_8841", 4200)
			return err
		}
		transactor := store.Transactions(db)
		var keys atomic.Int64
		ours := func(ctx context.Context, _, _ int) error {
			key := "charge " + strconv.FormatInt(keys.Add(1), 10)
			_, err := sqlitestore.OnceTx(ctx, client, transactor, key, nil, func(ctx context.Context, tx *sql.Tx) (string, error) {
				return body, enter(ctx, tx)
			})
			return err
		}
		bare := func(ctx context.Context, _, _ int) error {
			tx, err := one.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			if err := enter(ctx, tx); err != nil {
				return errors.Join(err, tx.Rollback())
			}
			return tx.Commit()
		}
		side := func(run func(context.Context, int, int) error) func(context.Context, time.Duration) (float64, error) {
			return func(ctx context.Context, d time.Duration) (float64, error) { return rate(ctx, goroutines, d, run) }
		}
		return interleave(ctx, c, "transactions/s, each on stable storage", side(ours), side(bare))
	}
}
