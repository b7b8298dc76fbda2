package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"
)

// namedSpeaker asks MySQL or MariaDB. Its targets are names as the server knows them:
// they have letters, digits and a hyphen only, and stand in the SQL as they are, since
// with a parameter each question would be two.
type namedSpeaker struct {
	db    *sql.DB // to end sessions by
	maria bool
}

func (s *namedSpeaker) name(target string) string { return "GET_LOCK('" + target + "')" }

func (s *namedSpeaker) take(ctx context.Context, conn *sql.Conn, target string, t *taking) (taken bool, err error) {
	var got sql.NullBool
	var session int64
	err = conn.QueryRowContext(ctx, "SELECT GET_LOCK('"+target+"', 0), CONNECTION_ID()").Scan(&got, &session)
	if err == nil && !got.Valid {
		err = errNull
	}
	if err != nil || got.Bool || t.try {
		return got.Bool, s.explain(target, err)
	}
	// A wait that is given up in the middle would go on in the server, and may be
	// granted to nobody. So the session is ended, by another one.
	asking, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	stop := context.AfterFunc(ctx, func() {
		defer abandon()
		killing, cancel := context.WithTimeout(asking, time.Second)
		defer cancel()
		if _, err := s.db.ExecContext(killing, "KILL "+strconv.FormatInt(session, 10)); err == nil {
			<-killing.Done() // the answer to the wait is that it was killed
		}
	})
	defer func() {
		if !stop() && err == nil { // the end may be on its way, and must not hit whoever has the session next
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

// wait waits for so long, or less.
func (s *namedSpeaker) wait(ctx context.Context, conn *sql.Conn, target string, d time.Duration) (bool, error) {
	seconds := strconv.FormatFloat(max(d, time.Millisecond).Seconds(), 'f', 6, 64)
	if !s.maria {
		// MySQL rounds, up or down, so it gets whole ones.
		whole := d.Truncate(time.Second)
		seconds = strconv.FormatInt(int64(whole/time.Second), 10)
		if whole == 0 {
			pause := time.NewTimer(min(d, 20*time.Millisecond+rand.N(60*time.Millisecond)))
			defer pause.Stop()
			select {
			case <-pause.C:
			case <-ctx.Done():
				return false, context.Cause(ctx)
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, d+answerLimit)
	defer cancel()
	var got sql.NullBool
	// The server's own limit for statements would end the wait.
	unlimited := "SET STATEMENT max_statement_time = 0 FOR SELECT"
	if !s.maria { // where 0 would be the session's limit
		unlimited = fmt.Sprintf("SELECT /*+ MAX_EXECUTION_TIME(%d) */", milliseconds(d+answerLimit))
	}
	query := unlimited + " GET_LOCK('" + target + "', " + seconds + ")"
	err := conn.QueryRowContext(ctx, query).Scan(&got)
	if err == nil && !got.Valid {
		err = errNull
	}
	return got.Bool, err
}

func (s *namedSpeaker) drop(ctx context.Context, conn *sql.Conn, target string, _ bool) error {
	var had sql.NullBool
	switch err := conn.QueryRowContext(ctx, "SELECT RELEASE_LOCK('"+target+"')").Scan(&had); {
	case err != nil:
		return err
	case !had.Bool: // NULL: nobody has it
		return errNotThere
	}
	return nil
}

// watch cannot: the driver reads nothing that it did not ask for.
func (s *namedSpeaker) watch(ctx context.Context, _ *sql.Conn) error {
	<-ctx.Done()
	return nil
}

func (s *namedSpeaker) beat(ctx context.Context, conn *sql.Conn, target string) error {
	var has sql.NullBool
	switch err := conn.QueryRowContext(ctx, "SELECT IS_USED_LOCK('"+target+"') = CONNECTION_ID()").Scan(&has); {
	case err != nil:
		return err
	case !has.Bool:
		return errNotThere
	}
	return nil
}

// explain gives a server's error its meaning.
func (s *namedSpeaker) explain(target string, err error) error {
	switch mysqlNumber(err) {
	case 3058, 1213: // MySQL's own number for named locks; MariaDB has one for all
		return deadlock(s.name(target), err)
	}
	return err
}

var errNull = errors.New("the server answers NULL: the statement was ended by KILL QUERY, or there is no memory for the lock (ask again)")
