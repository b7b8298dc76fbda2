package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/sqllock"
)

const (
	numberBatch = 100
	writers     = 16
)

// sequenceNumbers compares the numbers that writers of one scope get, a hundred in a
// transaction that also writes a row for each, with one number above the largest, taken in a
// transaction under an advisory lock.
var sequenceNumbers = with(alone, func(ctx context.Context, c config, b *candidates) figure {
	url := servertest.Postgres(b, nil).URL()
	pool := b.pgxPool(ctx, url)
	numbers := get(sqllock.NewSequence(sqllock.PostgreSQL, nil))
	must(numbers.Migrate(ctx, b.pgxSQL(url)))
	for _, table := range []string{"invoice", "invoice_by_hand"} {
		get(pool.Exec(ctx, "CREATE TABLE "+table+" (tenant text, number bigint, customer text NOT NULL, PRIMARY KEY (tenant, number))"))
	}
	writing := func(name string, batch int, write func(context.Context, pgx.Tx) error) side {
		return func(ctx context.Context, _ int) float64 {
			return float64(batch) * rate(ctx, name, writers, c.round, func(ctx context.Context, _, _ int) error { return inTransaction(ctx, pool, write) })
		}
	}
	ours := writing(ours, numberBatch, func(ctx context.Context, tx pgx.Tx) error {
		first, err := numbers.NextN(ctx, tx, "acme", numberBatch)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO invoice SELECT 'acme', n, 'cus_8841' FROM generate_series($1::bigint, $2) n", first, first+numberBatch-1)
		return err
	})
	f := interleave(ctx, c, fmt.Sprintf("numbers/s, by %d writers of one scope", writers), ours, writing("MAX+1", 1, byMax))
	// If a number is missing, what was measured is worth nothing.
	var rows, last int64
	must(pool.QueryRow(ctx, "SELECT count(*), max(number) FROM invoice").Scan(&rows, &last))
	if rows != last {
		must(fmt.Errorf("of %d numbers %d are there", last, rows))
	}
	return f
})

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
