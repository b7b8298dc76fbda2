package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// namedFunctions calls MySQL's and MariaDB's functions of named locks. Its targets are
// names on the server. They have letters, digits and a hyphen only, so they are part of
// the SQL: a parameter would cost a second round trip.
type namedFunctions struct {
	db    *sql.DB // ends sessions
	maria bool
}

func (s *namedFunctions) name(target string) string { return "GET_LOCK('" + target + "')" }

func (s *namedFunctions) take(ctx context.Context, conn *sql.Conn, target string, t *request) (taken bool, err error) {
	var got sql.NullBool
	var session int64
	err = conn.QueryRowContext(ctx, "SELECT GET_LOCK('"+target+"', 0), CONNECTION_ID()").Scan(&got, &session)
	if err == nil && !got.Valid {
		err = errNull
	}
	if err != nil || got.Bool || t.try {
		return got.Bool, s.explain(target, err)
	}
	// A cancelled wait would go on in the server, and the lock might be granted to a
	// session without a caller. So another session ends this one.
	asking, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	stop := context.AfterFunc(ctx, func() {
		defer abandon()
		killing, cancel := context.WithTimeout(asking, time.Second)
		defer cancel()
		if _, err := s.db.ExecContext(killing, "KILL "+strconv.FormatInt(session, 10)); err == nil {
			<-killing.Done() // the wait ends with an error
		}
	})
	defer func() {
		if !stop() && err == nil { // a KILL under way must not hit the session's next user
			taken, err = false, context.Cause(ctx)
		}
	}()
	for ctx.Err() == nil {
		slice, more := t.left(waitSlice)
		if !more {
			return false, nil
		}
		got, err := s.wait(asking, conn, target, slice)
		if got || err != nil {
			return got, s.explain(target, err)
		}
	}
	return false, context.Cause(ctx)
}

// wait waits for at most d, which MySQL has rounded up to seconds.
func (s *namedFunctions) wait(ctx context.Context, conn *sql.Conn, target string, d time.Duration) (bool, error) {
	d = max(d, time.Millisecond)
	if !s.maria { // MySQL rounds the time up or down
		d = (d + time.Second - 1).Truncate(time.Second)
	}
	seconds := strconv.FormatFloat(d.Seconds(), 'f', -1, 64)
	ctx, cancel := context.WithTimeout(ctx, d+answerLimit)
	defer cancel()
	var got sql.NullBool
	// The server's limit for statements would end the wait.
	unlimited := "SET STATEMENT max_statement_time = 0 FOR SELECT"
	if !s.maria { // 0 would mean the session's limit
		unlimited = fmt.Sprintf("SELECT /*+ MAX_EXECUTION_TIME(%d) */", milliseconds(d+answerLimit))
	}
	query := unlimited + " GET_LOCK('" + target + "', " + seconds + ")"
	err := conn.QueryRowContext(ctx, query).Scan(&got)
	if err == nil && !got.Valid {
		err = errNull
	}
	return got.Bool, err
}

func (s *namedFunctions) drop(ctx context.Context, conn *sql.Conn, target string, _ bool) error {
	var had sql.NullBool
	switch err := conn.QueryRowContext(ctx, "SELECT RELEASE_LOCK('"+target+"')").Scan(&had); {
	case err != nil:
		return err
	case !had.Bool: // NULL: no session has it
		return errNotThere
	}
	return nil
}

// watch only waits, because the driver reads nothing between statements.
func (s *namedFunctions) watch(ctx context.Context, _ *sql.Conn) error {
	<-ctx.Done()
	return nil
}

func (s *namedFunctions) beat(ctx context.Context, conn *sql.Conn, target string) error {
	var has sql.NullBool
	switch err := conn.QueryRowContext(ctx, "SELECT IS_USED_LOCK('"+target+"') = CONNECTION_ID()").Scan(&has); {
	case err != nil:
		return err
	case !has.Bool:
		return errNotThere
	}
	return nil
}

func (s *namedFunctions) explain(target string, err error) error {
	switch mysqlNumber(err) {
	case 3058, 1213: // MySQL's number for named locks; MariaDB's for all
		return deadlock(s.name(target), err)
	}
	return err
}

var errNull = errors.New("the server returned NULL: KILL QUERY ended the statement, or the server has no memory for the lock; try again")
