package sqllock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
)

// stateError is an error with an SQLSTATE, as lib/pq and pgx return it.
type stateError string

func (e stateError) Error() string    { return "SQLSTATE " + string(e) }
func (e stateError) SQLState() string { return string(e) }

// codeError is how SQLite's driver does.
type codeError int

func (e codeError) Error() string { return fmt.Sprintf("code %d", int(e)) }
func (e codeError) Code() int     { return int(e) }

func mysqlError(number uint16) error { return &mysql.MySQLError{Number: number} }

// What may be tried again, and what may have been committed.
func TestConflicts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		d                        Dialect
		err                      error
		conflicted, notCommitted bool
	}{
		{PostgreSQL, stateError("40001"), true, true},
		{PostgreSQL, stateError("40P01"), true, true},
		{PostgreSQL, stateError("23505"), false, true},
		{PostgreSQL, stateError("25P02"), false, true},
		{PostgreSQL, stateError("P0001"), false, true},
		{PostgreSQL, stateError("40003"), false, false}, // it does not know
		{PostgreSQL, stateError("57P01"), false, false}, // may come after the commit
		{PostgreSQL, stateError("08006"), false, false},
		{PostgreSQL, stateError("XX000"), false, false},
		{PostgreSQL, stateError(""), false, false},
		{PostgreSQL, mysqlError(1213), false, false},
		{MySQL, mysqlError(1213), true, true},
		{MySQL, mysqlError(1205), true, true},
		{MariaDB, mysqlError(1020), true, true},
		{MySQL, mysqlError(1053), false, false},
		{MySQL, mysqlError(1317), false, false},
		{MySQL, mysql.ErrInvalidConn, false, false},
		{SQLite, codeError(5), true, true},
		{SQLite, codeError(517), true, true},
		{SQLite, codeError(6), true, true},
		{SQLite, codeError(787), false, true}, // a foreign key
		{SQLite, codeError(13), false, true},
		{SQLite, codeError(10), false, false},
		{SQLite, io.ErrUnexpectedEOF, false, false},
		{PostgreSQL, pgx.ErrTxCommitRollback, false, true},
		{PostgreSQL, context.Canceled, false, false},
		{MariaDB, &RowHeldError{Err: mysqlError(1205)}, false, false}, // was asked for
		{SQLite, nil, false, false},
	} {
		wrapped := fmt.Errorf("wrapped: %w", c.err)
		if got := c.d.Conflicted(wrapped); got != c.conflicted {
			t.Errorf("%v: %v is a conflict: %v", c.d, c.err, got)
		}
		if _, held := errors.AsType[*RowHeldError](c.err); held {
			continue // no answer to a commit
		}
		if got := c.d.notCommitted(wrapped); got != c.notCommitted {
			t.Errorf("%v: %v says that nothing was committed: %v", c.d, c.err, got)
		}
	}
}
