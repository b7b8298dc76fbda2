package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/sqllock"
)

const (
	numberBatch = 100
	writers     = 16
)

// openSQL opens a pool of database/sql by pgx, with a connection for each caller.
func (b *candidates) openSQL(url string) (*sql.DB, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	db := sqlPool(stdlib.OpenDB(*config))
	b.close = append(b.close, func() { _ = db.Close() })
	return db, nil
}

// sequenceNumbers compares the numbers that writers of one scope get, a hundred in a
// transaction that also writes a row for each, with one number above the largest, taken in a
// transaction under an advisory lock.
func sequenceNumbers(ctx context.Context, c config) (figure, error) {
	b := newCandidates()
	defer b.end()
	server := servertest.Postgres(b.scope, nil)
	pool, err := pgxPool(ctx, server.URL())
	if err != nil {
		return figure{}, err
	}
	b.close = append(b.close, pool.Close)
	numbers, err := sqllock.NewSequence(sqllock.PostgreSQL, nil)
	if err != nil {
		return figure{}, err
	}
	db, err := b.openSQL(server.URL())
	if err != nil {
		return figure{}, err
	}
	if err := numbers.Migrate(ctx, db); err != nil {
		return figure{}, err
	}
	for _, table := range []string{"invoice", "invoice_by_hand"} {
		if _, err := pool.Exec(ctx, "CREATE TABLE "+table+" (tenant text, number bigint, customer text NOT NULL, PRIMARY KEY (tenant, number))"); err != nil {
			return figure{}, err
		}
	}
	side := func(batch int, write func(context.Context, pgx.Tx) error) func(context.Context, time.Duration) (float64, error) {
		return func(ctx context.Context, d time.Duration) (float64, error) {
			transactions, err := rate(ctx, writers, d, func(ctx context.Context, _, _ int) error { return inTransaction(ctx, pool, write) })
			return transactions * float64(batch), err
		}
	}
	ours := side(numberBatch, func(ctx context.Context, tx pgx.Tx) error {
		first, err := numbers.NextN(ctx, tx, "acme", numberBatch)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO invoice SELECT 'acme', n, 'cus_8841' FROM generate_series($1::bigint, $2) n", first, first+numberBatch-1)
		return err
	})
	f, err := interleave(ctx, c, fmt.Sprintf("numbers/s, by %d writers of one scope", writers), ours, side(1, byMax))
	if err != nil {
		return f, err
	}
	return f, gapless(ctx, pool)
}

// byMax takes a number as people do by hand.
func byMax(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended('acme', 0))"); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `INSERT INTO invoice_by_hand
		SELECT 'acme', coalesce(max(number), 0) + 1, 'cus_8841' FROM invoice_by_hand WHERE tenant = 'acme'`)
	return err
}

func inTransaction(ctx context.Context, pool *pgxpool.Pool, write func(context.Context, pgx.Tx) error) error {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	if err := write(ctx, tx); err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	return tx.Commit(ctx)
}

// gapless returns an error when a number is missing: then what was measured is worth
// nothing.
func gapless(ctx context.Context, pool *pgxpool.Pool) error {
	var rows, last int64
	if err := pool.QueryRow(ctx, "SELECT count(*), max(number) FROM invoice").Scan(&rows, &last); err != nil {
		return err
	}
	if rows != last {
		return fmt.Errorf("of %d numbers %d are there", last, rows)
	}
	return nil
}
