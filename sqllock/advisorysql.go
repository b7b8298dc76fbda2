package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

const locksOf = `pg_locks WHERE locktype = 'advisory' AND granted
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND classid = $1::bigint::oid AND objid = $2::bigint::oid AND objsubid = $3::int`

const heldSQL = "SELECT EXISTS (SELECT FROM " + locksOf + ")"

// advisoryFunctions calls PostgreSQL's functions of advisory locks.
type advisoryFunctions struct {
	unchecked bool // AdvisoryOptions.SessionPooler
}

func (s *advisoryFunctions) name(key AdvisoryKey) string { return advisoryName(key) }

func advisoryName(key AdvisoryKey) string { return "pg_advisory_lock(" + key.String() + ")" }

// advisorySlice is the longest wait in one statement, because CREATE INDEX CONCURRENTLY
// waits for every statement that began before it. PostgreSQL looks for deadlocks after
// deadlock_timeout, 1 s by default. When both times end at once, it looks for the
// deadlock first.
const advisorySlice = time.Second

// take checks in the same statement that the session is the one that the driver knows:
// behind a pooler the lock would belong to a foreign session.
func (s *advisoryFunctions) take(ctx context.Context, conn *sql.Conn, key AdvisoryKey, t *request) (bool, error) {
	args, params := key.args()
	var pid any // NULL: unknown
	if n := sessionOf(conn); n != 0 && !s.unchecked {
		pid = int64(n)
	}
	params = append(params, pid)
	mine := fmt.Sprintf("COALESCE(pg_backend_pid() = $%d::bigint, true)", len(params))
	if t.try {
		query := "SELECT CASE WHEN " + mine + " THEN " + function("pg_try_advisory_lock", t.shared) + "(" + args + ") END"
		var got sql.NullBool
		err := conn.QueryRowContext(ctx, query, params...).Scan(&got)
		if err == nil && !got.Valid {
			err = poolerError()
		}
		return got.Bool, err
	}
	// The setting ends with the transaction, and the statement is one.
	query := "SELECT CASE WHEN " + mine + fmt.Sprintf(" AND set_config('lock_timeout', $%d, true) IS NOT NULL THEN ", len(params)+1) +
		function("pg_advisory_lock", t.shared) + "(" + args + ")::text END IS NOT NULL"
	for asked := false; ; asked = true {
		slice, more := t.left(advisorySlice)
		if !more && asked {
			return false, nil
		}
		slice = max(slice, time.Millisecond) // ask once, however short the wait
		waiting, cancel := context.WithTimeout(ctx, slice+answerLimit)
		var got bool
		err := conn.QueryRowContext(waiting, query, append(params[:len(params):len(params)], lockTimeout(slice))...).Scan(&got)
		cancel()
		if err == nil && !got {
			err = poolerError()
		}
		if err == nil || ctx.Err() != nil || errors.Is(err, ErrPooler) {
			return got, err
		}
		switch sqlState(err) {
		case "55P03": // lock_timeout
			if err := s.undo(ctx, conn, key, t.shared); err != nil {
				return false, err
			}
		case "40P01":
			return false, deadlock(advisoryName(key), err)
		default:
			return false, err
		}
	}
}

// undo releases the lock if it was granted in the moment in which the wait ended. It
// looks first, because the server logs a warning when a session releases a lock that it
// does not have.
func (s *advisoryFunctions) undo(ctx context.Context, conn *sql.Conn, key AdvisoryKey, shared bool) error {
	class, object, sub := key.inLocks()
	var there bool
	query := "SELECT EXISTS (SELECT FROM " + locksOf + " AND pid = pg_backend_pid())"
	if err := conn.QueryRowContext(ctx, query, class, object, sub).Scan(&there); err != nil || !there {
		return err
	}
	return s.drop(ctx, conn, key, shared)
}

func (s *advisoryFunctions) drop(ctx context.Context, conn *sql.Conn, key AdvisoryKey, shared bool) error {
	args, params := key.args()
	var had bool
	query := "SELECT " + function("pg_advisory_unlock", shared) + "(" + args + ")"
	switch err := conn.QueryRowContext(ctx, query, params...).Scan(&had); {
	case err != nil:
		return err
	case !had:
		return errNotThere
	}
	return nil
}

// watch reads from the connection, if the driver is pgx's, because the server announces
// the end of a session there.
func (s *advisoryFunctions) watch(ctx context.Context, conn *sql.Conn) (err error) {
	known := false
	rawErr := conn.Raw(func(c any) error {
		if c, ok := c.(*stdlib.Conn); ok {
			known = true
			err = listen(ctx, c.Conn())
		}
		return nil
	})
	if err == nil && !known {
		err = rawErr
	}
	if err == nil && !known {
		<-ctx.Done()
	}
	return err
}

// listen returns nil when the context ends, or why the session ended before.
func listen(ctx context.Context, conn *pgx.Conn) error {
	for ctx.Err() == nil {
		if err := conn.PgConn().WaitForNotification(ctx); err != nil && (ctx.Err() == nil || conn.IsClosed()) {
			return err
		}
	}
	return nil
}

func (s *advisoryFunctions) beat(ctx context.Context, conn *sql.Conn, _ AdvisoryKey) error {
	var one int
	return conn.QueryRowContext(ctx, "SELECT 1").Scan(&one)
}

func function(name string, shared bool) string {
	if shared {
		return name + "_shared"
	}
	return name
}

// lockTimeout formats a time in ms for PostgreSQL, rounded up because 0 means no limit.
func lockTimeout(d time.Duration) string { return strconv.FormatInt(milliseconds(d), 10) }

func deadlock(name string, err error) error {
	return fmt.Errorf("%w: %s: %w (take locks in one order everywhere, with LockAll, and try again)", ErrDeadlock, name, err)
}

var (
	errNotThere = errors.New("the session does not have the lock")
	errNoKeys   = errors.New("sqllock: no key was given; give at least one")
)
