// Invoice-number: twenty customers buy at once, and every other card is declined.
// By law the invoices are numbered 1, 2, 3, without a duplicate and without a gap.
//
// MAX(number) + 1 gives the same number to all callers that ask before the first of them
// has written. A database's sequence gives each number once, and never takes it back: a
// declined card leaves a gap. sqllock's Sequence is a row that is raised in the
// transaction of the invoice. So a number is taken only if its invoice is committed. docs/guides/gapless-numbers.md says what that costs.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"

	"github.com/dibs-go/dibs/examples/internal/concurrent"
	"github.com/dibs-go/dibs/examples/internal/database"
	"github.com/dibs-go/dibs/sqllock"
)

const customers = 20

var errDeclined = errors.New("the card is declined")

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "invoice-number:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	db, err := database.Make(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if _, err := db.ExecContext(ctx, "CREATE TABLE invoice (series text, number bigint, customer int)"); err != nil {
		return err
	}
	fmt.Printf("%d customers buy at once, and every other card is declined, on %v.\n\n", customers, db.Dialect)

	// Broken: all callers ask for the number before one uses it.
	barrier := concurrent.NewBarrier(customers)
	err = concurrent.Run(ctx, customers, func(ctx context.Context, customer int) error {
		var number int64
		err := db.QueryRowContext(ctx, "SELECT COALESCE(MAX(number), 0) + 1 FROM invoice WHERE series = 'max'").Scan(&number)
		if err != nil {
			return err
		}
		barrier.Arrive()
		if err := barrier.Wait(ctx); err != nil {
			return err
		}
		return sell(ctx, db, "max", customer, func(context.Context, *sql.Tx) (int64, error) { return number, nil })
	})
	if err != nil {
		return err
	}
	if _, err := count(ctx, db, "max", "MAX(number) + 1"); err != nil {
		return err
	}

	// Broken too, even if no two callers come at the same time.
	next, err := sequence(ctx, db)
	if err != nil {
		return err
	}
	for customer := range customers {
		var number int64
		if err := db.QueryRowContext(ctx, next).Scan(&number); err != nil {
			return err
		}
		err := sell(ctx, db, "sequence", customer, func(context.Context, *sql.Tx) (int64, error) { return number, nil })
		if err != nil {
			return err
		}
	}
	if _, err := count(ctx, db, "sequence", "a sequence"); err != nil {
		return err
	}

	numbers, err := sqllock.NewSequence(db.Dialect, nil)
	if err != nil {
		return err
	}
	if err := numbers.Migrate(ctx, db.DB); err != nil {
		return err
	}
	err = concurrent.Run(ctx, customers, func(ctx context.Context, customer int) error {
		return sell(ctx, db, "sqllock", customer, func(ctx context.Context, tx *sql.Tx) (int64, error) {
			return numbers.Next(ctx, tx, "invoice 2026")
		})
	})
	if err != nil {
		return err
	}
	right, err := count(ctx, db, "sqllock", "sqllock.Sequence")
	if err == nil && !right {
		err = errors.New("sqllock.Sequence: the numbers are not 1, 2, 3 and so on")
	}
	return err
}

// sell writes the invoice and takes the money, both or neither.
func sell(ctx context.Context, db *database.Database, series string, customer int, number func(context.Context, *sql.Tx) (int64, error)) error {
	err := sqllock.Transact(ctx, db.Dialect, db.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
		n, err := number(ctx, tx)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO invoice VALUES ($1, $2, $3)", series, n, customer); err != nil {
			return err
		}
		if customer%2 == 0 {
			return errDeclined
		}
		return nil
	})
	if errors.Is(err, errDeclined) {
		return nil // no invoice
	}
	return err
}

// sequence makes a sequence, and returns the statement that takes a number from it.
// SQLite has no sequences. A table does the same: a counter that commits by itself.
func sequence(ctx context.Context, db *database.Database) (next string, err error) {
	if db.Dialect == sqllock.PostgreSQL {
		_, err = db.ExecContext(ctx, "CREATE SEQUENCE invoice_number")
		return "SELECT nextval('invoice_number')", err
	}
	_, err = db.ExecContext(ctx, "CREATE TABLE invoice_number (taken bigint); INSERT INTO invoice_number VALUES (0)")
	return "UPDATE invoice_number SET taken = taken + 1 RETURNING taken", err
}

// count prints what numbers a series has, and reports whether they are right: one
// for each good card, from 1 on, without a duplicate and without a gap.
func count(ctx context.Context, db *database.Database, series, name string) (right bool, err error) {
	var invoices, distinct, lowest, highest int
	err = db.QueryRowContext(ctx, `SELECT count(*), count(DISTINCT number), min(number), max(number)
		FROM invoice WHERE series = $1`, series).Scan(&invoices, &distinct, &lowest, &highest)
	if err != nil {
		return false, err
	}
	fmt.Printf("%-16s   %d invoices, numbers %d to %d: %d too many of the same, %d missing\n",
		name, invoices, lowest, highest, invoices-distinct, highest-distinct)
	return invoices == customers/2 && distinct == invoices && lowest == 1 && highest == invoices, nil
}
