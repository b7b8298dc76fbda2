package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs"
)

const (
	// most is how many elements one call of a function has, and mostBytes how many
	// bytes of records or progress, but for a single one that is larger.
	most      = 512
	mostBytes = 16 << 20

	// patience is how often a call is tried again that the server has undone as a
	// whole: deadlocks, lost connections on which nothing happened.
	patience = 8
)

// statement is a call of one of the functions.
type statement struct {
	name  string // under which connections remember it
	sql   string
	types []uint32
}

func (n namer) statement(name, sql string, types []uint32) *statement {
	return &statement{name: n.schema + "." + n.prefix + "_" + name, sql: n.sql(sql), types: types}
}

// call is one call of a statement.
type call struct {
	*statement
	params [][]byte               // in binary form
	reset  func()                 // before each try; may be nil
	row    func(r *reading) error // takes a row
	want   int                    // how many rows there have to be; 0 for any
}

// run makes a call. What the server has undone as a whole is tried again.
func (s *Store) run(ctx context.Context, pool *pgxpool.Pool, c *call) error {
	for try := 1; ; try++ {
		undone, err := s.once(ctx, pool, c)
		if err == nil {
			return nil
		}
		if !undone || try == patience || ctx.Err() != nil {
			return explain(err)
		}
		// Who met in a deadlock must not meet again.
		pause := time.NewTimer(rand.N(time.Duration(try) * 4 * time.Millisecond))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return explain(err)
		}
	}
}

// runApart makes the call of some elements. Where somebody else keeps the rows of
// some keys locked, nothing was done for any, and they are made without these, each
// of which fails alone. The call is prepared again for each part that is made at once.
func (s *Store) runApart(ctx context.Context, pool *pgxpool.Pool, part []int, key func(int) dibs.Key, fail func(int, error), prepare func([]int) *call) error {
	for {
		err := s.run(ctx, pool, prepare(part))
		if !errors.Is(err, ErrLocked) {
			return err
		}
		stuck, wrong := s.stuck(ctx, pool, part, key)
		if wrong != nil {
			return wrong
		}
		left := part[:0:0]
		for _, i := range part {
			if stuck[key(i)] {
				fail(i, err)
			} else {
				left = append(left, i)
			}
		}
		switch {
		case len(left) == 0:
			return nil
		case len(left) < len(part):
		case len(part) == 1:
			fail(part[0], err)
			return nil
		default:
			// The row is one that somebody is about to make, which nobody sees: each by itself.
			for n := range part {
				if err := s.runApart(ctx, pool, part[n:n+1:n+1], key, fail, prepare); err != nil {
					return err
				}
			}
			return nil
		}
		part = left
	}
}

// stuck returns which of the elements' keys somebody else has locked.
func (s *Store) stuck(ctx context.Context, pool *pgxpool.Pool, part []int, key func(int) dibs.Key) (map[dibs.Key]bool, error) {
	ks := make([][]byte, len(part))
	for n, i := range part {
		ks[n] = appendKey(nil, key(i))
	}
	rows, err := pool.Query(ctx, s.names.sql("SELECT * FROM @stuck($1)"), pgx.QueryExecModeExec, ks)
	if err != nil {
		return nil, explain(err)
	}
	found := map[dibs.Key]bool{}
	locked, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	for _, k := range locked {
		if key, ok := parseKey(k); ok {
			found[key] = true
		}
	}
	return found, explain(err)
}

// once makes a call once. undone says of a failed one that nothing of it was done
// and that it may go better next time.
func (s *Store) once(ctx context.Context, pool *pgxpool.Pool, c *call) (undone bool, err error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	if c.reset != nil {
		c.reset()
	}
	result, err := s.start(ctx, conn.Conn().PgConn(), c)
	if err != nil {
		return pgconn.SafeToRetry(err) || undoes(err) || ended(err), err // it was not even sent
	}
	rows := 0
	var failed error
	for result.NextRow() {
		rows++
		if failed == nil {
			r := reading{columns: result.Values()}
			failed = c.row(&r)
		}
	}
	_, err = result.Close()
	switch {
	case err != nil && s.forgotten(err):
		return true, err
	case err != nil:
		// Once the server has said what columns there are, it may be done with it, and
		// losing the connection says nothing.
		return undoes(err) || len(result.FieldDescriptions()) == 0 && (pgconn.SafeToRetry(err) || ended(err)), err
	case failed != nil:
		return false, failed
	case c.want != 0 && rows != c.want:
		return false, fmt.Errorf("pgstore: the server gave %d answers to %d questions", rows, c.want)
	}
	return false, nil
}

// start sends a call. Behind a pooler each transaction may be on another
// connection to the server, so nothing is prepared there.
func (s *Store) start(ctx context.Context, conn *pgconn.PgConn, c *call) (*pgconn.ResultReader, error) {
	binary := []int16{1}
	if s.unprepared.Load() {
		return conn.ExecParams(ctx, c.sql, c.params, c.types, binary, binary), nil
	}
	known := conn.CustomData()
	if known[c.name] == nil {
		if _, err := conn.Prepare(ctx, c.name, c.sql, c.types); err != nil {
			if code(err) == "42P05" { // somebody did it before us, on this very connection
				s.unprepared.Store(true)
			}
			return nil, err
		}
		known[c.name] = true
	}
	return conn.ExecPrepared(ctx, c.name, c.params, binary, binary), nil
}

// forgotten reports whether a connection does not know what was prepared on it: it
// goes to another server connection than before.
func (s *Store) forgotten(err error) bool {
	if code(err) != "26000" {
		return false
	}
	s.unprepared.Store(true)
	return true
}

// code returns what the server calls an error, or "".
func code(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// undoes reports whether an error means that the server undid all of a call, and
// that trying again helps.
func undoes(err error) bool {
	switch code(err) {
	case "40001", // serialization failure
		"40P01", // deadlock
		"42P05", // prepared already
		"26000": // not prepared
		return true
	}
	return false
}

// ended reports whether the server ended the connection, or is about to stop.
func ended(err error) bool {
	switch code(err) {
	case "57P01", "57P02", "57P03":
		return true
	}
	return false
}
