package sqllock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Row reads a row of a table into a T and writes it back without losing a concurrent
// change: Update locks the row, UpdateOptimistic detects changes. It is safe for
// concurrent use.
type Row[T any] struct {
	d Dialect
	o RowOptions[T]
	t transactor
}

// RowOptions describes a Row. The SQL is the application's own, with its database's
// placeholders.
type RowOptions[T any] struct {
	// Select finds one row. Its parameters are the arguments of Update and
	// UpdateOptimistic:
	//
	//	SELECT id, balance FROM account WHERE id = $1
	//
	// Update appends FOR UPDATE and its variants.
	Select string
	// Fields returns the destinations of the columns of Select, in their order.
	Fields func(*T) []any

	// Update writes a row back. Its parameters are Values:
	//
	//	UPDATE account SET balance = $1 WHERE id = $2
	//
	// For UpdateOptimistic and Save it raises a version, and matches the version that was
	// read:
	//
	//	UPDATE account SET balance = $1, version = version + 1
	//	WHERE id = $2 AND version = $3
	//
	// "": fn writes by itself.
	Update string
	// Values returns the parameters of Update, in their order.
	Values func(*T) []any

	// Lock says how Update locks the row. UpdateOptimistic locks nothing.
	Lock RowLock
	// Isolation is the level of Update's transaction. 0: the database's default. On
	// PostgreSQL at repeatable read, a concurrent change of the row is a conflict, after
	// which everything is done again. If Update is "", that level is ErrIsolation,
	// because fn would read old data.
	Isolation sql.IsolationLevel
	// MaxTries bounds how often Update and UpdateOptimistic try after conflicts. 0: 10.
	// 1: fn runs once.
	MaxTries int
}

// NewRow returns a Row, or an error that names the wrong option.
func NewRow[T any](d Dialect, o *RowOptions[T]) (*Row[T], error) {
	if o == nil {
		o = &RowOptions[T]{}
	}
	if err := d.validate(); err != nil {
		return nil, err
	}
	if err := o.validate(d); err != nil {
		return nil, err
	}
	r := &Row[T]{d: d, o: *o}
	r.o.MaxTries = cmp.Or(o.MaxTries, defaultTries)
	r.o.Select = strings.TrimRight(o.Select, "; \t\r\n")
	r.t = transactor{d: d, isolation: o.Isolation, tries: r.o.MaxTries, wait: o.Lock.Wait}
	return r, nil
}

// locks finds the locking clauses that Update appends itself.
var locks = regexp.MustCompile(`(?i)\bFOR\s+(NO\s+KEY\s+)?(UPDATE|SHARE|KEY\s+SHARE)\b|\bLOCK\s+IN\s+SHARE\s+MODE\b`)

func (o *RowOptions[T]) validate(d Dialect) error {
	switch {
	case strings.TrimSpace(o.Select) == "":
		return errors.New("sqllock: RowOptions.Select is empty; set the statement that reads the row")
	case locks.MatchString(o.Select):
		return errors.New("sqllock: RowOptions.Select has a locking clause; remove it, and set RowOptions.Lock instead")
	case o.Fields == nil:
		return errors.New("sqllock: RowOptions.Fields is nil; set the destinations of the columns of Select")
	case o.Update != "" && o.Values == nil:
		return errors.New("sqllock: RowOptions.Values is nil; set the parameters of Update")
	case o.Update == "" && o.Values != nil:
		return errors.New("sqllock: RowOptions.Update is empty, but RowOptions.Values is set")
	case o.MaxTries < 0:
		return fmt.Errorf("sqllock: RowOptions.MaxTries is %d; it must not be negative", o.MaxTries)
	}
	return o.Lock.validate(d, "RowOptions.Lock")
}

// Update begins a transaction, reads and locks the row that Select finds with args, runs
// fn, writes the row back as fn left it, and commits. No other transaction changes the
// row meanwhile. Readers without a lock see the old row. What fn writes with tx is
// committed together with the row.
//
// After a conflict everything is done again, see Transact: fn must do nothing that a
// rollback does not undo, and gets the current row on every try.
//
// It returns the row as it was written. Errors after which nothing was done: fn's error,
// unchanged; sql.ErrNoRows when Select finds no row (with SkipLocked: no unlocked row);
// dibs.ErrHeld (a *RowHeldError) when the wait is over; ErrConflict when the tries ran
// out. ErrUnknown: the commit was not answered.
func (r *Row[T]) Update(ctx context.Context, db *sql.DB, fn func(ctx context.Context, tx *sql.Tx, row *T) error, args ...any) (T, error) {
	var row T
	if fn == nil {
		return row, noFunction("Row.Update")
	}
	seen := observed(r.o.Lock.Observe, r.o.Select, args)
	err := r.t.run(ctx, db, &seen, func(ctx context.Context, tx *sql.Tx) error {
		var err error
		if row, err = r.readLocked(ctx, tx, args); err != nil {
			return err
		}
		seen.acquired(ctx)
		if err := fn(ctx, tx, &row); err != nil {
			return err
		}
		return r.write(ctx, tx, &row)
	})
	seen.refused(ctx, err)
	return row, err
}

var errManyRows = errors.New("sqllock: RowOptions.Select finds more than one row; match one by its key, or add LIMIT 1")

func (r *Row[T]) readLocked(ctx context.Context, tx *sql.Tx, args []any) (T, error) {
	one := reader[T]{fields: r.o.Fields}
	if r.d == PostgreSQL && r.o.Update == "" {
		var isolation string
		err := sqlStatements{tx}.row(ctx, "SELECT current_setting('transaction_isolation')", nil, &isolation)
		if err == nil && isolation == "repeatable read" {
			return one.row, ErrIsolation
		} else if err != nil {
			return one.row, rowFault("reading the isolation level", err)
		}
	}
	err := r.o.Lock.read(ctx, r.d, sqlStatements{tx}, r.o.Select, args, one.scan)
	if err == nil && one.n == 0 {
		err = sql.ErrNoRows
	}
	return one.row, rowFault("reading and locking the row", err)
}

type reader[T any] struct {
	fields func(*T) []any
	row    T
	n      int
}

func (r *reader[T]) scan(scan func(...any) error) error {
	if r.n++; r.n > 1 {
		return errManyRows
	}
	return scan(r.fields(&r.row)...)
}

// write writes the locked row.
func (r *Row[T]) write(ctx context.Context, tx *sql.Tx, row *T) error {
	if r.o.Update == "" {
		return nil
	}
	changed, _, err := sqlStatements{tx}.exec(ctx, r.o.Update, r.o.Values(row)...)
	switch {
	case err != nil:
		return rowFault("writing the row", err)
	case changed > 1:
		return fmt.Errorf("sqllock: RowOptions.Update changed %d rows, but one is locked; it must match one row by its key", changed)
	case changed == 0 && !r.d.mysql(): // MySQL counts a row only if its values differ
		return errors.New("sqllock: RowOptions.Update changed no row; it must match the row that Select finds")
	}
	return nil
}

// rowFault adds what failed. It never gets fn's errors.
func rowFault(what string, err error) error {
	if _, ok := errors.AsType[*RowHeldError](err); ok || err == nil || errors.Is(err, errManyRows) {
		return err
	}
	return fmt.Errorf("sqllock: %s: %w", what, err)
}
