package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// UpdateOptimistic reads the row that Select finds with args, runs fn, and writes the row
// back if no other writer has changed it since. After a conflict it reads the row again
// and runs fn again. While fn runs, no lock is held and no transaction is open, so fn may
// be slow. fn must only change the row, and must be right for any row that it gets.
// Update must raise a version and match the version that was read, see RowOptions.
//
// It is better than Update where conflicts are rare.
//
// It returns the row as fn left it, with the version that was read. Errors after which
// nothing was done: fn's error, unchanged; sql.ErrNoRows when Select finds no row;
// ErrConflict when the tries ran out. ErrUnknown: the write was not answered.
func (r *Row[T]) UpdateOptimistic(ctx context.Context, db *sql.DB, fn func(ctx context.Context, row *T) error, args ...any) (T, error) {
	var row T
	if fn == nil {
		return row, noFunction("Row.UpdateOptimistic")
	}
	conflicted := func(err error) bool { return errors.Is(err, ErrConflict) || r.d.Conflicted(err) }
	err := retry(ctx, r.o.MaxTries, "lock the row with Update", conflicted, func() (err error) {
		row, err = r.tryOptimistic(ctx, db, fn, args)
		return err
	})
	return row, err
}

func (r *Row[T]) tryOptimistic(ctx context.Context, db *sql.DB, fn func(context.Context, *T) error, args []any) (T, error) {
	one := reader[T]{fields: r.o.Fields}
	if r.o.Update == "" {
		return one.row, errNoUpdate
	}
	err := sqlStatements{db}.rows(ctx, r.o.Select, args, one.scan)
	if err == nil && one.n == 0 {
		err = sql.ErrNoRows
	}
	if err != nil {
		return one.row, rowFault("reading the row", err)
	}
	if err := fn(ctx, &one.row); err != nil {
		return one.row, err
	}
	if err := ctx.Err(); err != nil {
		return one.row, fmt.Errorf("sqllock: nothing was written: %w", context.Cause(ctx))
	}
	return one.row, r.Save(ctx, db, &one.row)
}

var errNoUpdate = errors.New("sqllock: RowOptions.Update is empty; set the statement that writes the row back if its version is unchanged")

// Save writes back a row that was read at any earlier time, if no other writer has
// changed it since. For example, a form carries the version of the row that it shows.
// Update must be as with UpdateOptimistic. db is a *sql.DB, or a transaction (Tx).
//
// It returns ErrConflict, and writes nothing, when another writer has changed or deleted
// the row. Outside a transaction it returns ErrUnknown when the write was not answered.
func (r *Row[T]) Save(ctx context.Context, db Tx, row *T) error {
	if r.o.Update == "" {
		return errNoUpdate
	}
	s, pool, err := statementsOn(r.d, db)
	if err != nil {
		return err
	}
	changed, _, err := s.exec(ctx, r.o.Update, r.o.Values(row)...)
	switch {
	case err != nil && !pool, err != nil && r.d.refused(err):
		return rowFault("writing the row", err)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	case changed == 0:
		return fmt.Errorf("%w: the row has another version now, or was deleted; read it again", ErrConflict)
	case changed > 1:
		return fmt.Errorf("sqllock: RowOptions.Update changed %d rows; it must find the one by its key and version", changed)
	}
	return nil
}
