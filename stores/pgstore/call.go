package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/store/remote"
)

const (
	// maxElements bounds the elements of one transaction, and maxBytes their size in bytes. A
	// single element may be larger.
	maxElements = 512
	maxBytes    = 16 << 20
)

// statement is SQL that is sent again and again.
type statement struct {
	name string // under which connections remember it; "" when they do not
	sql  string
}

func (n namer) statement(name, sql string) *statement {
	return &statement{name: n.schema + "." + n.prefix + "_" + name, sql: n.sql(sql)}
}

// query is a statement that is sent with others.
type query struct {
	*statement
	params [][]byte         // in binary form
	row    func(r *reading) // takes a row
}

// undone is an error of a call that did nothing, because of a deadlock or a connection that
// was lost before. Another try may succeed.
type undone struct{ error }

func (u undone) Unwrap() error { return u.error }

// try makes a call, and makes it again if it was undone.
func try(ctx context.Context, call func() error) error {
	return explain(remote.Try(ctx, func(err error) bool {
		_, ok := errors.AsType[undone](err)
		return ok
	}, call))
}

// try is try, and has the next call connect again after a server said that it takes no writes:
// another one of the hosts may be the primary.
func (s *Store) try(ctx context.Context, call func() error) error {
	err := try(ctx, call)
	if errors.Is(err, ErrReadOnly) {
		s.front.Reset()
		s.back.Reset()
	}
	return err
}

// use calls f with a connection. If f fails and leaves a transaction open, use rolls it back.
func use(ctx context.Context, pool *pgxpool.Pool, f func(*pgconn.PgConn) error) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	pg := conn.Conn().PgConn()
	err = f(pg)
	if err != nil && !pg.IsClosed() && pg.TxStatus() != 'I' {
		undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackLimit)
		defer cancel()
		_, _ = pg.Exec(undoing, "rollback").ReadAll() // the pool closes a connection on which that failed
	}
	return err
}

// ask sends one statement.
func (s *Store) ask(ctx context.Context, pool *pgxpool.Pool, q query) error {
	return use(ctx, pool, func(pg *pgconn.PgConn) error { return s.send(ctx, pg, true, q) })
}

// send sends statements in one round trip. The server carries them out up to the first that
// fails. commits says that the server may commit them.
func (s *Store) send(ctx context.Context, pg *pgconn.PgConn, commits bool, all ...query) error {
	batch, err := s.prepare(ctx, pg, all)
	begun, said := err == nil, false
	if begun {
		said, err = exchange(ctx, pg, batch, all)
	}
	switch code(err) {
	case "40001", "40P01": // a serialization failure, a deadlock
		return undone{err}
	case "26000", "42P05": // the statement is unknown, or another client prepared it: behind this connection is another server connection than before
		s.unprepared.Store(true)
		return undone{err}
	}
	// A statement that was sent may be done, whatever the error says of the connection. It is
	// not if a server that stops has answered nothing else.
	if err != nil && ((!begun || !commits) && (code(err) == "" || ended(err)) || ended(err) && !said) {
		return undone{err}
	}
	return err
}

// prepare prepares the statements that this connection does not know, and returns a batch
// of them all. No statement of the batch was sent if it fails.
func (s *Store) prepare(ctx context.Context, pg *pgconn.PgConn, all []query) (*pgconn.Batch, error) {
	batch, binary := &pgconn.Batch{}, []int16{1}
	if pg.IsClosed() {
		return nil, errors.New("the connection is closed")
	}
	for _, q := range all {
		// Behind a pooler each transaction may be on another connection to the server, so
		// nothing is prepared there.
		if q.name == "" || s.unprepared.Load() {
			batch.ExecParams(q.sql, q.params, nil, binary, binary)
			continue
		}
		if known := pg.CustomData(); known[q.name] == nil {
			if _, err := pg.Prepare(ctx, q.name, q.sql, nil); err != nil {
				return nil, err
			}
			known[q.name] = true
		}
		batch.ExecPrepared(q.name, q.params, binary, binary)
	}
	return batch, nil
}

// exchange sends a batch and reads what the server answers. said says that the server has
// begun to answer.
func exchange(ctx context.Context, pg *pgconn.PgConn, batch *pgconn.Batch, all []query) (said bool, err error) {
	results := pg.ExecBatch(ctx, batch)
	var wrong error
	for n := 0; results.NextResult(); n++ {
		said = true
		result := results.ResultReader()
		for result.NextRow() {
			r := reading{columns: result.Values()}
			if n < len(all) && all[n].row != nil {
				all[n].row(&r)
			}
			if wrong == nil {
				wrong = r.err
			}
		}
		_, _ = result.Close() // its error is that of them all
	}
	if err := results.Close(); err != nil {
		return said, err
	}
	if wrong != nil {
		return true, fault(ErrUnsupported, wrong, "it is not the server that it should be")
	}
	return said, nil
}

// stuck returns which of the keys another transaction has locked.
func (s *Store) stuck(ctx context.Context, keys []string) (map[string]bool, error) {
	stuck := map[string]bool{}
	err := s.ask(ctx, s.back, query{s.sql.stuck, [][]byte{keyArray(keys)}, func(r *reading) {
		var k string
		r.scan(&k)
		stuck[k] = true
	}})
	return stuck, explain(err)
}

// number checks which of n questions the server has answered.
func number(r *reading, i int64, n int) bool {
	if i < 1 || i > int64(n) {
		r.err = fmt.Errorf("pgstore: the server answered question %d of %d", i, n)
		return false
	}
	return true
}

// code returns what the server calls an error, or "".
func code(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// ended reports whether the server ended the connection, or is about to stop.
func ended(err error) bool {
	switch code(err) {
	case "57P01", "57P02", "57P03",
		"25P03": // a transaction was idle for too long; it is rolled back
		return true
	}
	return false
}
