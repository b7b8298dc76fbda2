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

	"github.com/dibs-go/dibs"
)

// NoWait as RowLock.Wait returns dibs.ErrHeld at once.
const NoWait time.Duration = -1

// RowLock says how rows are locked. nil and the zero value mean: wait as long as the
// context and the server allow (MySQL and MariaDB: innodb_lock_wait_timeout, 50 s by
// default; PostgreSQL: lock_timeout, unlimited by default).
type RowLock struct {
	// Wait is the longest wait, rounded up to milliseconds; then the error is
	// dibs.ErrHeld. 0: no limit. NoWait: no wait. PostgreSQL needs two more round trips
	// for it. MySQL cannot limit the wait of one statement, so there it is an error: set
	// innodb_lock_wait_timeout, for example in the DSN. SQLite waits for the lock of the file.
	Wait time.Duration
	// SkipLocked leaves out locked rows, so that workers can each take the next job of a
	// table. It has no effect on SQLite, which locks the whole file.
	SkipLocked bool
	// NoKey does not block transactions that refer to the row by foreign key
	// (PostgreSQL's FOR NO KEY UPDATE; no effect on other databases). Leave it false if
	// the row may be deleted or its key changed.
	NoKey bool
	// Observe is called when rows were locked or refused, and when Row.Update ends its
	// transaction: released after a commit or a rollback, abandoned after a conflict, lost if the
	// commit was not answered. LockRows does not see the end (Event.InTx). Default: none.
	Observe Observer
}

func (l *RowLock) validate(d Dialect, field string) error {
	switch {
	case l.Wait > 0 && d == MySQL:
		return fmt.Errorf("sqllock: %s.Wait: MySQL cannot limit the wait of one statement; use NoWait, or set innodb_lock_wait_timeout, for example in the DSN (a wait that it ends is a conflict, see Transact)", field)
	case l.Wait < 0 && l.Wait != NoWait:
		return fmt.Errorf("sqllock: %s.Wait is %v; it must be NoWait or not negative", field, l.Wait)
	case l.SkipLocked && l.Wait != 0:
		return fmt.Errorf("sqllock: %s.SkipLocked never waits; leave Wait 0", field)
	}
	return nil
}

// RowHeldError is the dibs.ErrHeld of a row that another transaction has locked.
type RowHeldError struct {
	// Waited is how long the caller waited; 0 with NoWait.
	Waited time.Duration
	// Err is the database's error.
	Err error
}

func (e *RowHeldError) Error() string {
	return fmt.Sprintf("sqllock: another transaction still has the row locked after a wait of %v; wait longer, or try again later: %v",
		e.Waited.Round(time.Millisecond), e.Err)
}

// Is makes errors.Is(err, dibs.ErrHeld) true.
func (e *RowHeldError) Is(target error) bool { return target == dibs.ErrHeld }

// Unwrap returns the database's error.
func (e *RowHeldError) Unwrap() error { return e.Err }

// LockRows locks the rows whose column has one of the ids, until the transaction ends. It
// sorts the ids, so callers that lock all their rows with one LockRows never wait for
// each other in a circle. The column must have a unique index, usually the primary key.
// On SQLite the transaction takes the lock of the file.
//
// It returns the ids that it locked, in order. Errors:
//   - sql.ErrNoRows (a *MissingRowsError) when rows are missing and SkipLocked is not
//     set. The other rows are locked then.
//   - dibs.ErrHeld when RowLock.Wait is over.
//   - ErrIsolation in a transaction of PostgreSQL at repeatable read, because it would
//     not see what the last holder of the rows committed.
//
// Roll the transaction back after an error. MySQL and MariaDB use repeatable read by
// default: there, call LockRows before the transaction's first SELECT, which fixes what
// later ones see, unless those lock, too (FOR SHARE).
//
// At most 10,000 ids. table may have a schema and a dot. Names are taken as they are;
// PostgreSQL stores unquoted names in lower case.
func LockRows[ID comparable](ctx context.Context, d Dialect, tx Tx, l *RowLock, table, column string, ids ...ID) ([]ID, error) {
	if err := d.validate(); err != nil {
		return nil, err
	}
	s, err := statementsOf(d, tx)
	if err != nil {
		return nil, err
	}
	return lockRows(ctx, d, s, l, table, column, ids)
}

// maxRows bounds LockRows because databases bound the parameters of a statement; SQLite's
// bound is the smallest.
const maxRows = 10_000

func lockRows[ID comparable](ctx context.Context, d Dialect, s statements, l *RowLock, table, column string, ids []ID) ([]ID, error) {
	if l == nil {
		l = &RowLock{}
	}
	if err := l.validate(d, "RowLock"); err != nil {
		return nil, err
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
		return nil, fmt.Errorf("sqllock: %d rows are too many to lock at once; lock at most %d, or one row that represents them", len(args), maxRows)
	}
	seen := observed(l.Observe, table, args)
	locked, err := takeRows[ID](ctx, d, s, l, from, id, text.String(), args)
	// Compare the numbers first, because a column may equate ids that Go does not.
	if err == nil && !l.SkipLocked && len(locked) < len(args) {
		err = missingRows(table, locked, args)
	}
	refused := err
	if err == nil && len(locked) == 0 { // SkipLocked
		refused = sql.ErrNoRows
	}
	seen.inTx(ctx, refused)
	return locked, err
}

// takeRows locks rows whose column has one of the values.
func takeRows[ID comparable](ctx context.Context, d Dialect, s statements, l *RowLock, from, id, values string, args []any) ([]ID, error) {
	if d == SQLite {
		if err := takeSQLite(ctx, s, l, from, id); err != nil {
			return nil, err
		}
	}
	columns := id
	if d == PostgreSQL {
		columns += ", current_setting('transaction_isolation')"
	}
	query := fmt.Sprintf("SELECT %s FROM %s WHERE %s IN (%s) ORDER BY %s", columns, from, id, values, id)
	if d.mysql() { // otherwise the session's sql_select_limit would leave rows unlocked
		query += " LIMIT 18446744073709551615"
	}
	locked := make([]ID, 0, len(args))
	err := l.read(ctx, d, s, query, args, func(scan func(...any) error) error {
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
	return locked, nil
}

func missingRows[ID comparable](table string, locked []ID, wanted []any) error {
	missing := &MissingRowsError{Table: table}
	for _, id := range wanted {
		if !slices.Contains(locked, id.(ID)) {
			missing.IDs = append(missing.IDs, id)
		}
	}
	return missing
}

// takeSQLite takes the lock of SQLite's file, with an UPDATE that matches no row.
func takeSQLite(ctx context.Context, s statements, l *RowLock, table, column string) error {
	c := s.(sqlStatements).tx
	since := time.Now()
	err := withBusyTimeout(ctx, c, l.Wait, func() error {
		_, err := c.ExecContext(ctx, fmt.Sprintf("UPDATE %s SET %s = %s WHERE 0", table, column, column))
		return err
	})
	// A transaction whose reads are outdated (517) cannot wait for the lock: that is a
	// conflict.
	if code, _ := sqliteCode(err); l.Wait != 0 && code&0xff == 5 && code != 517 {
		return held(since, l.Wait, err)
	}
	return lockFault(err)
}

// MissingRowsError is the sql.ErrNoRows of LockRows.
type MissingRowsError struct {
	// Table is the name that was given to LockRows.
	Table string
	// IDs are the ids without a row.
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

// read runs a SELECT with the locking clause, and calls each for every row.
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
	// A wait that ended earlier than Wait has hit the server's own timeout.
	if err != nil && ctx.Err() == nil && d.notAvailable(err) && l.over(since) {
		return held(since, l.Wait, err)
	}
	return err
}

// over reports whether Wait is over. Clocks differ a little.
func (l *RowLock) over(since time.Time) bool {
	return l.Wait == NoWait || l.Wait > 0 && time.Since(since) >= l.Wait*9/10
}

// clause is the locking clause. It begins a line, because the SELECT may end with a
// comment.
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
	case l.Wait == NoWait:
		clause += " NOWAIT"
	}
	return clause
}

// withTimeouts runs f with PostgreSQL's timeouts set to Wait. lock_timeout counts for
// each lock of a statement, so statement_timeout limits their sum.
func (l *RowLock) withTimeouts(ctx context.Context, s statements, f func() error) error {
	var lock, statement, ignored string
	ms := milliseconds(l.Wait)
	err := s.row(ctx, "SELECT current_setting('lock_timeout'), current_setting('statement_timeout'), "+setTimeouts,
		[]any{strconv.FormatInt(ms, 10), strconv.FormatInt(min(ms+50, 1<<31-1), 10)}, &lock, &statement, &ignored, &ignored)
	if err != nil {
		return err
	}
	if err := f(); err != nil {
		return err // the rollback restores the settings
	}
	return s.row(ctx, "SELECT "+setTimeouts, []any{lock, statement}, &ignored, &ignored)
}

// setTimeouts lasts until the end of the transaction.
const setTimeouts = "set_config('lock_timeout', $1, true), set_config('statement_timeout', $2, true)"

// limited limits the time of a statement of MariaDB. Its limit for locks must be longer.
func (l *RowLock) limited(query string) string {
	seconds := l.Wait.Seconds()
	return fmt.Sprintf("SET STATEMENT max_statement_time = %.6f, innodb_lock_wait_timeout = %d FOR %s",
		max(seconds, 0.001), min(int64(seconds)+2, 1<<30), query)
}

func held(since time.Time, wait time.Duration, err error) error {
	e := &RowHeldError{Err: err}
	if wait != NoWait {
		e.Waited = time.Since(since)
	}
	return e
}

func lockFault(err error) error {
	if err == nil || errors.Is(err, dibs.ErrHeld) || errors.Is(err, ErrIsolation) {
		return err
	}
	return fmt.Errorf("sqllock: locking rows: %w", err)
}
