package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs"
)

// NoWait as a RowLock's Wait answers dibs.ErrHeld at once.
const NoWait time.Duration = -1

// RowLock says how rows are locked. nil and the zero value mean to wait for them as
// long as the context and the server allow (MySQL and MariaDB: innodb_lock_wait_timeout,
// 50 s unless it was changed; PostgreSQL: lock_timeout, mostly without end).
type RowLock struct {
	// Wait is the longest wait for those who have a row locked, in milliseconds: then
	// the answer is dibs.ErrHeld. Or NoWait. With it, PostgreSQL needs two round trips
	// more; MariaDB counts by itself; MySQL, which counts in seconds, is asked again
	// and again, each time in a transaction of its own; SQLite waits for its one lock.
	Wait time.Duration
	// SkipLocked leaves out the rows that somebody else has locked, as workers do who
	// take the next job of a table. SQLite, which has one lock, has nothing to leave
	// out.
	SkipLocked bool
	// NoKey locks against changes of the row but not against others that refer to it
	// by foreign keys (PostgreSQL's FOR NO KEY UPDATE; the others have the one kind).
	// Leave it false if the row may be deleted, or its key changed.
	NoKey bool
}

func (l *RowLock) validate(field string) error {
	switch {
	case l.Wait < 0 && l.Wait != NoWait:
		return fmt.Errorf("sqllock: %s.Wait is %v; it must be NoWait or not negative", field, l.Wait)
	case l.SkipLocked && l.Wait != 0:
		return fmt.Errorf("sqllock: %s has SkipLocked, which does not wait; leave Wait 0", field)
	}
	return nil
}

// RowHeldError is the dibs.ErrHeld of a row that somebody else has locked.
type RowHeldError struct {
	// Waited is how long the caller waited before it gave up.
	Waited time.Duration
	// Err is what the database said.
	Err error
}

func (e *RowHeldError) Error() string {
	return fmt.Sprintf("sqllock: somebody else has the row locked, after waiting %v; wait longer, or come back later: %v",
		e.Waited.Round(time.Millisecond), e.Err)
}

// Is makes errors.Is(err, dibs.ErrHeld) true.
func (e *RowHeldError) Is(target error) bool { return target == dibs.ErrHeld }

// Unwrap returns what the database said.
func (e *RowHeldError) Unwrap() error { return e.Err }

// LockRows locks the rows of a table whose column has one of the ids, in the order of
// the ids, whatever the order in which they are given: callers that lock all of what
// they need with one LockRows wait for one another, and never in a circle. They are
// locked until the transaction ends. The column must have a unique index, mostly as
// the primary key. On SQLite, which has one lock for all, the transaction takes that.
//
// It returns the ids that it locked, in order. When rows are missing, that is
// sql.ErrNoRows (a *MissingRowsError names them), unless the lock has SkipLocked; the
// others are locked then. When somebody else has one locked for longer than the lock's
// Wait: dibs.ErrHeld. MySQL has no Wait but NoWait here. ErrIsolation in a transaction of
// PostgreSQL at repeatable read, whose later reads would not show what the last holder
// of the rows committed elsewhere. MySQL and MariaDB are at that level by default: there,
// LockRows has to come before the transaction's first SELECT, which fixes what the later
// ones see, unless they lock too (FOR SHARE). After an error the transaction
// should be rolled back; PostgreSQL leaves no choice.
//
// At most 10,000 ids. Names of tables (after their schema and a point, if it must be)
// and columns are taken as they are: PostgreSQL has those that SQL did not quote in
// lower case.
func LockRows[ID comparable](ctx context.Context, d Dialect, tx Tx, l *RowLock, table, column string, ids ...ID) ([]ID, error) {
	if err := d.validate(); err != nil {
		return nil, err
	}
	s, err := statementsOf(tx)
	if err != nil {
		return nil, err
	}
	return lockRows(ctx, d, s, l, table, column, ids)
}

// LockRowsPgx is LockRows in a transaction of pgx.
func LockRowsPgx[ID comparable](ctx context.Context, tx pgx.Tx, l *RowLock, table, column string, ids ...ID) ([]ID, error) {
	return lockRows(ctx, PostgreSQL, pgxStatements{tx}, l, table, column, ids)
}

// maxRows is how many rows LockRows locks at once: databases bound the parameters of
// a statement, the smallest bound being SQLite's.
const maxRows = 10_000

func lockRows[ID comparable](ctx context.Context, d Dialect, s statements, l *RowLock, table, column string, ids []ID) ([]ID, error) {
	if l == nil {
		l = &RowLock{}
	}
	if err := l.validate("RowLock"); err != nil {
		return nil, err
	}
	if d == MySQL && l.Wait > 0 {
		return nil, errors.New("sqllock: RowLock.Wait: MySQL cannot limit the wait of one statement; use NoWait, and try the whole transaction again after a pause")
	}
	from, err := d.table("the table", table)
	if err != nil {
		return nil, err
	}
	id, err := d.identifier("the column", column)
	if err != nil {
		return nil, err
	}
	wanted := map[ID]bool{}
	var text strings.Builder
	var args []any
	for _, id := range ids {
		if wanted[id] {
			continue
		}
		wanted[id] = true
		args = append(args, id)
		if len(args) > 1 {
			text.WriteString(", ")
		}
		text.WriteString(d.placeholder(len(args)))
	}
	switch {
	case len(args) == 0:
		return nil, nil
	case len(args) > maxRows:
		return nil, fmt.Errorf("sqllock: %d rows are to be locked at once; lock at most %d, or one row that stands for them", len(args), maxRows)
	}
	if d == SQLite {
		if err := takeSQLite(ctx, s, l, from, id); err != nil {
			return nil, err
		}
	}
	columns := id
	if d == PostgreSQL {
		columns += ", current_setting('transaction_isolation')"
	}
	query := fmt.Sprintf("SELECT %s FROM %s WHERE %s IN (%s) ORDER BY %s", columns, from, id, text.String(), id)
	locked := make([]ID, 0, len(args))
	err = l.read(ctx, d, s, query, args, func(scan func(...any) error) error {
		var id ID
		var isolation string
		into := []any{&id, &isolation}
		if d != PostgreSQL {
			into = into[:1]
		}
		if err := scan(into...); err != nil {
			return err
		}
		if isolation == "repeatable read" {
			return ErrIsolation
		}
		locked = append(locked, id)
		return nil
	})
	if err != nil {
		return nil, lockFault(err)
	}
	// By number first: a column may take other ids for equal than Go does.
	if l.SkipLocked || len(locked) >= len(args) {
		return locked, nil
	}
	missing := &MissingRowsError{Table: table}
	for _, id := range args {
		if !slices.Contains(locked, id.(ID)) {
			missing.IDs = append(missing.IDs, id)
		}
	}
	return locked, missing
}

// takeSQLite takes SQLite's one lock for a transaction that may not have it yet, by a
// statement that would write but finds nothing to write.
func takeSQLite(ctx context.Context, s statements, l *RowLock, table, column string) error {
	c := s.(sqlStatements).tx
	since := time.Now()
	err := withBusyTimeout(ctx, c, l.Wait, func() error {
		_, err := c.ExecContext(ctx, fmt.Sprintf("UPDATE %s SET %s = %s WHERE 0", table, column, column))
		return err
	})
	// A transaction that has read what somebody changed since cannot wait for the
	// lock: that is a conflict, not a wait.
	if code, _ := sqliteCode(err); l.Wait != 0 && code&0xff == 5 && code != 517 {
		return held(since, l.Wait, err)
	}
	return lockFault(err)
}

// MissingRowsError is the sql.ErrNoRows of LockRows.
type MissingRowsError struct {
	Table string
	// IDs that the table does not have.
	IDs []any
}

func (e *MissingRowsError) Error() string {
	const shown = 10
	names := make([]string, 0, shown)
	for _, id := range e.IDs[:min(len(e.IDs), shown)] {
		names = append(names, fmt.Sprint(id))
	}
	if more := len(e.IDs) - shown; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("sqllock: the table %s has no rows %s", e.Table, strings.Join(names, ", "))
}

// Is makes errors.Is(err, sql.ErrNoRows) true.
func (e *MissingRowsError) Is(target error) bool { return target == sql.ErrNoRows }

// read runs a SELECT that locks the rows that it finds, and calls each for them.
func (l *RowLock) read(ctx context.Context, d Dialect, s statements, query string, args []any, each func(scan func(...any) error) error) error {
	since := time.Now()
	limit := l.Wait > 0
	var err error
	switch {
	case limit && d == PostgreSQL:
		err = l.withTimeouts(ctx, s, func() error { return s.rows(ctx, query+l.clause(d), args, each) })
	case limit && d == MariaDB:
		err = s.rows(ctx, l.limited(query+l.clause(d)), args, each)
	default:
		err = s.rows(ctx, query+l.clause(d), args, each)
	}
	// What ends sooner than was asked for is another timeout, the server's own.
	if err != nil && ctx.Err() == nil && d.notAvailable(err) && l.over(since) {
		return held(since, l.Wait, err)
	}
	return err
}

// over reports whether it was waited as long as is wanted. Clocks differ a little.
func (l *RowLock) over(since time.Time) bool {
	return l.Wait == NoWait || l.Wait > 0 && time.Since(since) >= l.Wait*9/10
}

// clause is what follows a SELECT that locks. It begins a line: the SELECT may end
// with a comment.
func (l *RowLock) clause(d Dialect) string {
	if d == SQLite { // the transaction has the lock
		return ""
	}
	clause := "\nFOR UPDATE"
	if l.NoKey && d == PostgreSQL {
		clause = "\nFOR NO KEY UPDATE"
	}
	switch {
	case l.SkipLocked:
		clause += " SKIP LOCKED"
	case l.Wait == NoWait, l.Wait > 0 && d == MySQL:
		clause += " NOWAIT"
	}
	return clause
}

// withTimeouts runs f while PostgreSQL waits as long as is wanted. One statement may
// wait for several locks, one after the other, and lock_timeout is for each, so all of
// it is limited too.
func (l *RowLock) withTimeouts(ctx context.Context, s statements, f func() error) error {
	var lock, statement, ignored string
	ms := milliseconds(l.Wait)
	err := s.row(ctx, "SELECT current_setting('lock_timeout'), current_setting('statement_timeout'), "+setTimeouts,
		[]any{strconv.FormatInt(ms, 10), strconv.FormatInt(min(ms+50, 1<<31-1), 10)}, &lock, &statement, &ignored, &ignored)
	if err != nil {
		return err
	}
	if err := f(); err != nil {
		return err // and the rollback takes the settings back
	}
	return s.row(ctx, "SELECT "+setTimeouts, []any{lock, statement}, &ignored, &ignored)
}

// setTimeouts is until the end of the transaction.
const setTimeouts = "set_config('lock_timeout', $1, true), set_config('statement_timeout', $2, true)"

// limited limits the time of a statement of MariaDB, and sees to it that the limit
// for locks is longer.
func (l *RowLock) limited(query string) string {
	seconds := l.Wait.Seconds()
	return fmt.Sprintf("SET STATEMENT max_statement_time = %.6f, innodb_lock_wait_timeout = %d FOR %s",
		max(seconds, 0.001), min(int64(seconds)+2, 1<<30), query)
}

// held is the answer to who did not get a lock.
func held(since time.Time, wait time.Duration, err error) error {
	e := &RowHeldError{Err: err}
	if wait != NoWait {
		e.Waited = time.Since(since)
	}
	return e
}

// lockFault says what failed.
func lockFault(err error) error {
	if err == nil || errors.Is(err, dibs.ErrHeld) || errors.Is(err, ErrIsolation) {
		return err
	}
	return fmt.Errorf("sqllock: locking rows: %w", err)
}
