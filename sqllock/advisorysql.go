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

// locksOf selects the advisory locks of a key in this database.
const locksOf = `pg_locks WHERE locktype = 'advisory' AND granted
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND classid = $1::bigint::oid AND objid = $2::bigint::oid AND objsubid = $3::int`

const heldSQL = "SELECT EXISTS (SELECT FROM " + locksOf + ")"

// advisorySpeaker asks PostgreSQL.
type advisorySpeaker struct {
	unchecked bool // whoever made it says that sessions are left to their clients
}

func (s *advisorySpeaker) name(key AdvisoryKey) string { return advisoryName(key) }

// advisoryName names an advisory lock for people.
func advisoryName(key AdvisoryKey) string { return "pg_advisory_lock(" + key.String() + ")" }

// advisorySlice is the longest that a statement waits for an advisory lock. While it is
// in progress it holds up CREATE INDEX CONCURRENTLY and the like, which wait for all
// statements that began before. PostgreSQL looks for deadlocks after deadlock_timeout,
// 1 s as it comes, and when both times are over at once it does so first.
const advisorySlice = time.Second

// take takes the lock, if the session is the one that the driver knows: behind a
// pooler it would belong to a session of others.
func (s *advisorySpeaker) take(ctx context.Context, conn *sql.Conn, key AdvisoryKey, t *taking) (bool, error) {
	args, params := key.args()
	var pid any // NULL: not known
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
	// The setting is the statement's own, whatever becomes of it: it ends with the
	// transaction, which the statement is.
	query := "SELECT CASE WHEN " + mine + fmt.Sprintf(" AND set_config('lock_timeout', $%d, true) IS NOT NULL THEN ", len(params)+1) +
		function("pg_advisory_lock", t.shared) + "(" + args + ")::text END IS NOT NULL"
	for asked := false; ; asked = true {
		slice, more := t.left(advisorySlice)
		if !more && asked {
			return false, nil
		}
		slice = max(slice, time.Millisecond) // whatever the wait, it is asked once
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

// undo gives up what a wait that ended in an error may have left in the session: a lock
// that is granted in the moment in which the wait is given up stays. It looks first,
// because the server logs a warning about a lock that is not there.
func (s *advisorySpeaker) undo(ctx context.Context, conn *sql.Conn, key AdvisoryKey, shared bool) error {
	class, object, sub := key.inLocks()
	var there bool
	query := "SELECT EXISTS (SELECT FROM " + locksOf + " AND pid = pg_backend_pid())"
	if err := conn.QueryRowContext(ctx, query, class, object, sub).Scan(&there); err != nil || !there {
		return err
	}
	return s.drop(ctx, conn, key, shared)
}

func (s *advisorySpeaker) drop(ctx context.Context, conn *sql.Conn, key AdvisoryKey, shared bool) error {
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

// watch reads what the server says, if the driver is pgx's: the end of the session is
// the first that it has to say. What it notifies of goes where it always goes.
func (s *advisorySpeaker) watch(ctx context.Context, conn *sql.Conn) (err error) {
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

// listen returns nil when the context ends, or else why the session ended before.
func listen(ctx context.Context, conn *pgx.Conn) error {
	for ctx.Err() == nil {
		if err := conn.PgConn().WaitForNotification(ctx); err != nil && (ctx.Err() == nil || conn.IsClosed()) {
			return err
		}
	}
	return nil
}

func (s *advisorySpeaker) beat(ctx context.Context, conn *sql.Conn, _ AdvisoryKey) error {
	var one int
	return conn.QueryRowContext(ctx, "SELECT 1").Scan(&one)
}

// function names a function for the mode.
func function(name string, shared bool) string {
	if shared {
		return name + "_shared"
	}
	return name
}

// lockTimeout writes a time as PostgreSQL reads it, in ms, rounded up: 0 means none.
func lockTimeout(d time.Duration) string { return strconv.FormatInt(milliseconds(d), 10) }

// deadlock is the answer to a wait in a circle.
func deadlock(name string, err error) error {
	return fmt.Errorf("%w: %s: %w (take locks in the same order everywhere, with LockAll, and try again)", ErrDeadlock, name, err)
}

var (
	errNotThere = errors.New("the session does not have it")
	errNoKeys   = errors.New("sqllock: no key was given; give at least one")
)
