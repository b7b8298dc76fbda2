package sqllock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Row is how a row of a table is read into a T and written back, so that no change by
// somebody else is lost in between: Update locks the row, UpdateOptimistic notices.
// It is safe for concurrent use.
type Row[T any] struct {
	d Dialect
	o RowOptions[T]
	t transactor
}

// RowOptions says what a Row is. The SQL is the application's own, with its database's
// placeholders.
type RowOptions[T any] struct {
	// Select finds one row; its parameters are the arguments of Update and
	// UpdateOptimistic:
	//
	//	SELECT id, balance FROM account WHERE id = $1
	//
	// Update adds FOR UPDATE and what belongs to it at the end.
	Select string
	// Fields returns where the columns of Select go, in their order.
	Fields func(*T) []any

	// Update writes a row back; its parameters are Values:
	//
	//	UPDATE account SET balance = $1 WHERE id = $2
	//
	// For UpdateOptimistic and Save it raises a version, and finds the row only with
	// the one that was read:
	//
	//	UPDATE account SET balance = $1, version = version + 1
	//	WHERE id = $2 AND version = $3
	//
	// It may be "" if fn writes by itself.
	Update string
	// Values returns the parameters of Update, in their order.
	Values func(*T) []any

	// Lock says how Update locks the row. UpdateOptimistic locks nothing.
	Lock RowLock
	// Isolation of Update's transaction; 0: the database's own default. At repeatable
	// read on PostgreSQL, fn would see all but the row as it was before the wait for it:
	// there, the Update statement of the one waited for is a conflict, after which all is
	// done again. If Update is "", it is ErrIsolation.
	Isolation sql.IsolationLevel
	// Attempts is how often Update and UpdateOptimistic try at most while they
	// conflict with others; 0: 10. 1: fn runs once.
	Attempts int
}

// NewRow describes a row. Returns an error that names the option that is wrong.
func NewRow[T any](d Dialect, o *RowOptions[T]) (*Row[T], error) {
	if o == nil {
		o = &RowOptions[T]{}
	}
	if err := d.validate(); err != nil {
		return nil, err
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	r := &Row[T]{d: d, o: *o}
	r.o.Attempts = cmp.Or(o.Attempts, defaultAttempts)
	r.o.Select = strings.TrimRight(o.Select, "; \t\r\n")
	r.t = transactor{d: d, isolation: o.Isolation, attempts: r.o.Attempts, wait: o.Lock.Wait}
	return r, nil
}

// locks finds what Update adds itself.
var locks = regexp.MustCompile(`(?i)\bFOR\s+(NO\s+KEY\s+)?(UPDATE|SHARE|KEY\s+SHARE)\b|\bLOCK\s+IN\s+SHARE\s+MODE\b`)

func (o *RowOptions[T]) validate() error {
	switch {
	case strings.TrimSpace(o.Select) == "":
		return errors.New("sqllock: RowOptions.Select is empty; it reads the row")
	case locks.MatchString(o.Select):
		return errors.New("sqllock: RowOptions.Select locks; leave that to Update, and say how in RowOptions.Lock")
	case o.Fields == nil:
		return errors.New("sqllock: RowOptions.Fields is nil; it says where the columns of Select go")
	case o.Update != "" && o.Values == nil:
		return errors.New("sqllock: RowOptions.Values is nil; it returns the parameters of Update")
	case o.Update == "" && o.Values != nil:
		return errors.New("sqllock: RowOptions.Update is empty, but there are Values for it")
	case o.Attempts < 0:
		return fmt.Errorf("sqllock: RowOptions.Attempts is %d; it must not be negative", o.Attempts)
	}
	return o.Lock.validate("RowOptions.Lock")
}

// Update begins a transaction, reads and locks the row that Select finds with args,
// runs fn, writes the row back as fn left it, and commits. Nobody else changes the row
// in between; who reads it without a lock sees it as it was. What else fn writes with
// tx is committed with it.
//
// On conflicts with others all of it is done again, see Transact: fn must do nothing
// that a rollback does not undo, and runs once for each attempt, each time with the
// row as it is then. With RowLock.Wait, MySQL is asked again for as long; fn does not
// run for that.
//
// Returns the row as it was written. Errors, after which nothing was done: fn's own,
// as it is; sql.ErrNoRows when Select finds none (or, with SkipLocked, none that
// nobody has locked); dibs.ErrHeld (a *RowHeldError) when the wait was over;
// ErrConflict when the attempts ran out. And ErrUnknown: nobody knows.
func (r *Row[T]) Update(ctx context.Context, db *sql.DB, fn func(ctx context.Context, tx *sql.Tx, row *T) error, args ...any) (T, error) {
	var row T
	update := func() error {
		return r.t.run(ctx, db, func(ctx context.Context, tx *sql.Tx) error {
			var err error
			if row, err = r.readLocked(ctx, tx, args); err != nil {
				return err
			}
			if err := fn(ctx, tx, &row); err != nil {
				return err
			}
			return r.write(ctx, tx, &row)
		})
	}
	since := time.Now()
	for {
		err := update()
		refused, ok := errors.AsType[*refusedError](err)
		if !ok {
			return row, err
		}
		left := r.o.Lock.Wait - time.Since(since)
		if left <= 0 {
			return row, held(since, r.o.Lock.Wait, refused.err)
		}
		if err := sleep(ctx, min(left, pollPause)); err != nil {
			return row, fmt.Errorf("sqllock: waiting for the row: %w", err)
		}
	}
}

// pollPause is how long MySQL is left alone before it is asked for a lock again.
const pollPause = 10 * time.Millisecond

// refusedError says that MySQL did not give a lock at once.
type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }

// errManyRows says that Select is not what it should be.
var errManyRows = errors.New("sqllock: RowOptions.Select finds more than one row; it must find one, by its key or with LIMIT 1")

// readLocked reads the row and locks it.
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
	if r.d == MySQL && r.o.Lock.Wait > 0 && r.d.notAvailable(err) {
		return one.row, &refusedError{err}
	}
	return one.row, rowFault("reading and locking the row", err)
}

// reader reads one row.
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

// write writes the row that the transaction has locked.
func (r *Row[T]) write(ctx context.Context, tx *sql.Tx, row *T) error {
	if r.o.Update == "" {
		return nil
	}
	changed, _, err := sqlStatements{tx}.exec(ctx, r.o.Update, r.o.Values(row)...)
	switch {
	case err != nil:
		return rowFault("writing the row", err)
	case changed > 1:
		return fmt.Errorf("sqllock: RowOptions.Update changed %d rows, which are not locked; it must find the one by its key", changed)
	case changed == 0 && !r.d.mysql(): // which counts a row as changed only if it differs
		return errors.New("sqllock: RowOptions.Update changed no row; it must find the one that Select finds")
	}
	return nil
}

// rowFault says what failed. fn's own errors do not come here.
func rowFault(what string, err error) error {
	if _, ok := errors.AsType[*RowHeldError](err); ok || err == nil || errors.Is(err, errManyRows) {
		return err
	}
	return fmt.Errorf("sqllock: %s: %w", what, err)
}
