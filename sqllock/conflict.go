package sqllock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backoff"
)

// Errors of Row, Sequence, FenceCheck and Transact, beside dibs.ErrHeld (*RowHeldError) and
// dibs.ErrLost (*OvertakenError).
var (
	// ErrConflict: other transactions changed the same rows during every try. Nothing
	// was done.
	ErrConflict = errors.New("sqllock: conflict: another transaction changed it")
	// ErrUnknown: the commit was not answered. It may have happened or not.
	ErrUnknown = errors.New("sqllock: the commit was not answered, and may have happened or not; check before you try again")
	// ErrIsolation: the transaction keeps one snapshot from its first statement on, so it
	// would not see what the last holder committed. Nothing was changed, and the
	// transaction can go on. Rows that LockRows found stay locked until it ends.
	ErrIsolation = errors.New("sqllock: the transaction is at repeatable read or serializable, so it does not see what the holders before it commit: begin it at read committed (sql.LevelReadCommitted)")
)

// Conflicted reports whether the database ended a transaction or a statement because of
// another transaction, so that the whole transaction may be tried again: a serialization
// failure, a deadlock, a lock wait timeout, or SQLite's busy file. A wait that the caller
// limited is not a conflict.
func (d Dialect) Conflicted(err error) bool {
	switch {
	case errors.Is(err, dibs.ErrHeld):
		return false
	case d == PostgreSQL:
		state := sqlState(err)
		return state == "40001" || state == "40P01"
	case d.mysql():
		switch mysqlNumber(err) {
		case 1205, // lock wait timeout
			1213, // deadlock
			1020: // the row changed since the transaction's snapshot (MariaDB)
			return true
		}
	case d == SQLite:
		return isBusy(err)
	}
	return false
}

// notAvailable reports whether the time that the statement allowed for a lock is over.
func (d Dialect) notAvailable(err error) bool {
	switch {
	case d == PostgreSQL:
		state := sqlState(err)
		return state == "55P03" || state == "57014" // lock_timeout and NOWAIT; statement_timeout
	case d.mysql():
		switch mysqlNumber(err) {
		case 1205, // MariaDB's NOWAIT, too
			3572, // MySQL's NOWAIT
			1969: // MariaDB's max_statement_time
			return true
		}
	case d == SQLite:
		return isBusy(err)
	}
	return false
}

// notCommitted reports whether the answer to a COMMIT proves that nothing was committed.
func (d Dialect) notCommitted(err error) bool {
	if errors.Is(err, pgx.ErrTxCommitRollback) || d.Conflicted(err) {
		return true
	}
	switch d {
	case PostgreSQL:
		state := sqlState(err)
		if len(state) != 5 || state == "40003" {
			return false
		}
		switch state[:2] {
		// Deferred constraints, triggers, and failures before the commit. A server
		// that shuts down (57P01) may have committed, so it is not here.
		case "22", "23", "25", "2D", "40", "42", "44", "P0":
			return true
		}
	case SQLite:
		switch code, _ := sqliteCode(err); code & 0xff {
		case 13, 19: // the disk is full; a deferred constraint
			return true
		}
	}
	return false
}

// refused reports whether the database itself says that it did not run the statement.
func (d Dialect) refused(err error) bool {
	switch {
	case d == PostgreSQL:
		state := sqlState(err)
		return len(state) == 5 && state != "40003" && state[:2] != "08" && state[:2] != "57" && state[:2] != "58" && state[:2] != "XX"
	case d.mysql():
		number := mysqlNumber(err)
		return number != 0 && number != 1053 && number != 1317 // shutdown, interrupted
	}
	_, ok := sqliteCode(err)
	return ok
}

// noTable reports whether err says that there is no such table.
func (d Dialect) noTable(err error) bool {
	switch {
	case d == PostgreSQL:
		return sqlState(err) == "42P01"
	case d.mysql():
		return mysqlNumber(err) == 1146
	}
	code, ok := sqliteCode(err)
	return ok && code == 1 // an error in the SQL: ours has no other
}

// sqlState returns the SQLSTATE of an error of any PostgreSQL driver, or "".
func sqlState(err error) string {
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return e.SQLState()
	}
	return ""
}

// mysqlNumber returns the number of a MySQL error, or 0.
func mysqlNumber(err error) uint16 {
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return e.Number
	}
	return 0
}

func sqliteCode(err error) (code int, ok bool) {
	if e, ok := errors.AsType[interface {
		error
		Code() int
	}](err); ok {
		return e.Code(), true
	}
	return 0, false
}

// isBusy reports whether another connection has SQLite's file locked, or a table in a
// shared cache.
func isBusy(err error) bool {
	code, _ := sqliteCode(err)
	return code&0xff == 5 || code&0xff == 6
}

// conflictPause is the pause between tries.
var conflictPause = backoff.Exponential{Min: 2 * time.Millisecond, Max: 100 * time.Millisecond}

// retry calls f until there is no conflict, at most tries times. or says what helps beside
// more tries.
func retry(ctx context.Context, tries int, or string, conflicted func(error) bool, f func() error) error {
	for try := 1; ; try++ {
		err := f()
		if err == nil || !conflicted(err) || ctx.Err() != nil {
			return err
		}
		if try >= tries {
			most := fmt.Errorf("%w, in %d tries; allow more, or %s", ErrConflict, try, or)
			if errors.Is(err, ErrConflict) {
				return most
			}
			return fmt.Errorf("%w: %w", most, err)
		}
		if ended := conflictPause.Wait(ctx, try); ended != nil {
			return fmt.Errorf("sqllock: before try %d: %w", try+1, ended)
		}
	}
}
