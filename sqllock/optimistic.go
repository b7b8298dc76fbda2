package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// UpdateOptimistic reads the row that Select finds with args, runs fn, and writes the
// row back if nobody else has written it since; if somebody has, it reads it again and
// runs fn again. No lock is held and no transaction is open while fn runs, so fn may
// take its time; but it must do nothing but change the row, and what it does to the
// row must be right for whatever it finds there. The Update must raise a version and
// find the row only with the version that was read, see RowOptions.
//
// It is the better choice where conflicts are rare, and Update where they are not.
//
// Returns the row as fn left it, with the version that was read. Errors, after which
// nothing was done: fn's own, as it is; sql.ErrNoRows when Select finds none;
// ErrConflict when the attempts ran out. And ErrUnknown: nobody knows.
func (r *Row[T]) UpdateOptimistic(ctx context.Context, db *sql.DB, fn func(ctx context.Context, row *T) error, args ...any) (T, error) {
	for attempt := 1; ; attempt++ {
		row, err := r.tryOptimistic(ctx, db, fn, args)
		if err == nil || !errors.Is(err, ErrConflict) && !r.d.Conflicted(err) || ctx.Err() != nil {
			return row, err
		}
		if attempt >= r.o.Attempts {
			if errors.Is(err, ErrConflict) {
				return row, fmt.Errorf("%w, in %d attempts; allow more, or lock the row with Update", ErrConflict, attempt)
			}
			return row, fmt.Errorf("%w, in %d attempts; allow more, or lock the row with Update: %w", ErrConflict, attempt, err)
		}
		if ended := pause(ctx, attempt); ended != nil {
			return row, fmt.Errorf("sqllock: before attempt %d: %w", attempt+1, ended)
		}
	}
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

var errNoUpdate = errors.New("sqllock: RowOptions.Update is empty; it writes the row back, if it still has the version that was read")

// Save writes back a row that was read at any time before, if nobody else has written
// it since: a form that a person has filled in carries the version that it was made
// from. The Update is as for UpdateOptimistic. db is a *sql.DB, or a transaction if the
// row is written together with others.
//
// Returns ErrConflict when somebody has written or deleted the row; nothing was
// written then. Without a transaction, ErrUnknown when no answer came.
func (r *Row[T]) Save(ctx context.Context, db Tx, row *T) error {
	if r.o.Update == "" {
		return errNoUpdate
	}
	changed, _, err := sqlStatements{db}.exec(ctx, r.o.Update, r.o.Values(row)...)
	switch {
	case err != nil && !beginner(db), err != nil && r.d.said(err):
		return rowFault("writing the row", err)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	case changed == 0:
		return fmt.Errorf("%w: the row does not have the version any more that was read, or is gone; read it again", ErrConflict)
	case changed > 1:
		return fmt.Errorf("sqllock: RowOptions.Update changed %d rows; it must find the one by its key and version", changed)
	}
	return nil
}
