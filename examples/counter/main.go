// Counter: twenty requests add one to the same number at the same moment. Each
// reads it, adds one and writes it back, as every ORM saves an object. All read 0, all
// write 1, no request gets an error, and nineteen updates are lost.
//
// Two things prevent it, without another server. Under the row's lock (sqllock's
// Row.Update) the second caller reads what the first has written. With a version in the
// row (Row.UpdateOptimistic) all callers read at once, and a caller that was too slow
// reads again. docs/guides/row-locks.md says when to use which.
//
// If one SQL statement can do it (UPDATE counter SET value = value + 1), use that. The
// counter here stands for changes that SQL cannot make.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/dibs-go/dibs/examples/internal/concurrent"
	"github.com/dibs-go/dibs/examples/internal/database"
	"github.com/dibs-go/dibs/sqllock"
)

const callers = 20

// counter is the row.
type counter struct{ value, version int64 }

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "counter:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	db, err := database.Make(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if _, err := db.ExecContext(ctx, `CREATE TABLE counter (value bigint NOT NULL, version bigint NOT NULL)`); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, `INSERT INTO counter VALUES (0, 0)`); err != nil {
		return err
	}
	row, err := sqllock.NewRow(db.Dialect, &sqllock.RowOptions[counter]{
		Select: "SELECT value, version FROM counter",
		Fields: func(c *counter) []any { return []any{&c.value, &c.version} },
		Update: "UPDATE counter SET value = $1, version = version + 1 WHERE version = $2",
		Values: func(c *counter) []any { return []any{c.value, c.version} },
		// One caller wins each round, so the last of twenty may need twenty rounds.
		MaxTries: 10 * callers,
	})
	if err != nil {
		return err
	}
	fmt.Printf("%d callers add one to a counter, at once, on %v.\n\n", callers, db.Dialect)

	// Broken: all callers read before one writes.
	barrier := concurrent.NewBarrier(callers)
	err = concurrent.Run(ctx, callers, func(ctx context.Context, _ int) error {
		var value int64
		if err := db.QueryRowContext(ctx, "SELECT value FROM counter").Scan(&value); err != nil {
			return err
		}
		barrier.Arrive()
		if err := barrier.Wait(ctx); err != nil {
			return err
		}
		_, err := db.ExecContext(ctx, "UPDATE counter SET value = $1", value+1)
		return err
	})
	if err != nil {
		return err
	}
	value, err := read(ctx, db)
	if err != nil {
		return err
	}
	fmt.Printf("read, add, write   it is at %d: %d updates are lost\n", value, callers-value)

	// One after the other: a caller that reads the row locks it until its commit.
	err = concurrent.Run(ctx, callers, func(ctx context.Context, _ int) error {
		_, err := row.Update(ctx, db.DB, func(_ context.Context, _ *sql.Tx, c *counter) error {
			c.value++
			return nil
		})
		return err
	})
	if err != nil {
		return err
	}
	if err := verify(ctx, db); err != nil {
		return fmt.Errorf("row lock: %w", err)
	}
	fmt.Printf("row lock           it is at %d: every update counts\n", callers)

	// Again all callers read before one writes. But now a caller that was too slow gets
	// a conflict, and reads again.
	var tries atomic.Int64
	barrier = concurrent.NewBarrier(callers)
	err = concurrent.Run(ctx, callers, func(ctx context.Context, _ int) error {
		_, err := row.UpdateOptimistic(ctx, db.DB, func(ctx context.Context, c *counter) error {
			tries.Add(1)
			c.value++
			barrier.Arrive()
			return barrier.Wait(ctx)
		})
		return err
	})
	if err != nil {
		return err
	}
	if err := verify(ctx, db); err != nil {
		return fmt.Errorf("version column: %w", err)
	}
	fmt.Printf("version column     it is at %d: every update counts, %d attempts in vain\n", callers, tries.Load()-callers)
	return nil
}

// read returns the counter and sets it back to 0.
func read(ctx context.Context, db *database.Database) (value int64, err error) {
	err = db.QueryRowContext(ctx, "SELECT value FROM counter").Scan(&value)
	if err == nil {
		_, err = db.ExecContext(ctx, "UPDATE counter SET value = 0")
	}
	return value, err
}

// verify is an error unless every caller's update counts.
func verify(ctx context.Context, db *database.Database) error {
	value, err := read(ctx, db)
	if err == nil && value != callers {
		err = fmt.Errorf("the counter is at %d, not %d", value, callers)
	}
	return err
}
