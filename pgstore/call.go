package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/engine"
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
	return explain(engine.Try(ctx, func(err error) bool {
		_, ok := errors.AsType[undone](err)
		return ok
	}, call))
}

// use has f use a connection. A failed f may leave a transaction open, which is undone.
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

// ask has the server carry out one statement.
func (s *Store) ask(ctx context.Context, pool *pgxpool.Pool, q query) error {
	return use(ctx, pool, func(pg *pgconn.PgConn) error { return s.send(ctx, pg, true, q) })
}

// send has the server carry out some statements, in one round trip, up to the first that
// fails. commits says that they may be committed with that.
func (s *Store) send(ctx context.Context, pg *pgconn.PgConn, commits bool, all ...query) error {
	said, err := s.exchange(ctx, pg, all)
	if err == nil {
		return nil
	}
	lost := pgconn.SafeToRetry(err) || ended(err)
	switch code(err) {
	case "40001", "40P01": // a serialization failure, a deadlock
		return undone{err}
	case "26000", "42P05": // forgotten, or prepared by somebody else: it is another server connection than before
		s.unprepared.Store(true)
		return undone{err}
	}
	// Once the server has said what columns there are, it may be done with it, and losing
	// the connection says nothing.
	if lost && !said || (lost || code(err) == "") && !commits {
		return undone{err}
	}
	return err
}

// exchange does so. said says that the server has begun to answer.
func (s *Store) exchange(ctx context.Context, pg *pgconn.PgConn, all []query) (said bool, err error) {
	var batch pgconn.Batch
	binary := []int16{1}
	for _, q := range all {
		// Behind a pooler each transaction may be on another connection to the server, so
		// nothing is prepared there.
		if q.name == "" || s.unprepared.Load() {
			batch.ExecParams(q.sql, q.params, nil, binary, binary)
			continue
		}
		if known := pg.CustomData(); known[q.name] == nil {
			if _, err := pg.Prepare(ctx, q.name, q.sql, nil); err != nil {
				return false, err
			}
			known[q.name] = true
		}
		batch.ExecPrepared(q.name, q.params, binary, binary)
	}
	results := pg.ExecBatch(ctx, &batch)
	var wrong error
	for n := 0; results.NextResult(); n++ {
		result := results.ResultReader()
		said = said || len(result.FieldDescriptions()) > 0
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

// stuck returns which of the keys somebody else has locked.
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
		"25P03": // a transaction was idle for too long, which is ours to be undone
		return true
	}
	return false
}
