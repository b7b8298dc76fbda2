package sqllock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs"
)

// Answers of what runs in transactions, beside dibs.ErrHeld (*RowHeldError) and
// dibs.ErrLost (*OvertakenError).
var (
	// ErrConflict: others changed the same rows meanwhile, as often as it was tried.
	// Nothing was done.
	ErrConflict = errors.New("sqllock: others changed it meanwhile")
	// ErrUnknown: no answer came to the commit. It may have happened, or not.
	ErrUnknown = errors.New("sqllock: no answer came to the commit, which may have happened or not; look before trying again")
	// ErrIsolation: the transaction keeps one snapshot from its first statement to its
	// end, so it would not see what the holder before it committed. Nothing was changed,
	// and the transaction goes on. Rows that LockRows found are locked until it ends.
	ErrIsolation = errors.New("sqllock: the transaction is at the isolation level repeatable read or serializable, where it does not see what others commit while it waits for them: begin it at read committed (sql.LevelReadCommitted)")
)

// Conflicted reports whether err says that the database gave up a transaction, or a
// statement, for the sake of another one, so that all of the transaction may be tried
// again: a serialization failure, a deadlock, a lock that was waited for too long, or
// SQLite's file being busy. A wait that the caller limited is no conflict.
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

// notAvailable reports whether err says that a lock was not to be had in the time
// that the statement allowed.
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

// undone reports whether the answer to a COMMIT says for certain that nothing was
// committed.
func (d Dialect) undone(err error) bool {
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
		// What the transaction itself is guilty of: deferred constraints and
		// triggers, a failure before. A server that shuts down (57P01) may have
		// committed and merely not told its replicas.
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

// said reports whether err is what the database itself says of a statement that it
// has not done.
func (d Dialect) said(err error) bool {
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
	return ok && code == 1 // an error in the SQL; and ours has no other
}

// sqlState returns the SQLSTATE of a PostgreSQL driver's error; "" for others.
func sqlState(err error) string {
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return e.SQLState()
	}
	return ""
}

// mysqlNumber returns the number of a MySQL error; 0 for others.
func mysqlNumber(err error) uint16 {
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return e.Number
	}
	return 0
}

// sqliteCode returns SQLite's extended result code.
func sqliteCode(err error) (code int, ok bool) {
	if e, ok := errors.AsType[interface {
		error
		Code() int
	}](err); ok {
		return e.Code(), true
	}
	return 0, false
}

// isBusy reports whether SQLite says that others have the file, or the table in a
// cache that is shared, locked.
func isBusy(err error) bool {
	code, _ := sqliteCode(err)
	return code&0xff == 5 || code&0xff == 6
}

// The pauses between attempts double from the first to the last, and each is drawn
// between nothing and that, so that those who met do not meet again.
const (
	firstPause = 2 * time.Millisecond
	lastPause  = 100 * time.Millisecond
)

// pause waits before the attempt that follows so many failed ones. It returns why ctx
// ended if it did.
func pause(ctx context.Context, failed int) error {
	most := min(firstPause<<min(failed-1, 10), lastPause)
	return sleep(ctx, rand.N(most)+1)
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
