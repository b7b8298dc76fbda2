package race

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dibs-go/dibs/cmd/dibs/internal/stores"
)

// row is a number in a row of a table that is there for this race. It can be kept
// whole by what the database has for that.
type row struct {
	name  string
	table *stores.Table
}

// openRow finds the place for a row; nil where there is no SQL.
func openRow(s *stores.Store, name string) (*row, error) {
	t, err := s.Table(name)
	if t == nil || err != nil {
		return nil, err
	}
	return &row{name, t}, nil
}

// make makes the table, with its row.
func (r *row) make(ctx context.Context) error {
	_, err := r.table.DB.ExecContext(ctx, "CREATE TABLE "+r.table.Name+" (id INTEGER PRIMARY KEY, n INTEGER NOT NULL, version INTEGER NOT NULL)")
	if err == nil {
		_, err = r.table.DB.ExecContext(ctx, "INSERT INTO "+r.table.Name+" (id, n, version) VALUES (1, 0, 0)")
	}
	return err
}

func (r *row) tell(t *task) { t.Row = r.name }

func (r *row) close() { _ = r.table.Close() }

func (r *row) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeLimit)
	defer cancel()
	if err := r.table.Drop(ctx); err != nil {
		return fmt.Errorf("the table %s is left behind, drop it: %w", r.table.Name, err)
	}
	return nil
}

// session is a connection, a transaction or a pool.
type session interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func (r *row) read(ctx context.Context) (int, error) { return r.readBy(ctx, r.table.DB, "") }

func (r *row) write(ctx context.Context, n int) error { return r.writeBy(ctx, r.table.DB, n) }

func (r *row) readBy(ctx context.Context, s session, lock string) (n int, err error) {
	err = s.QueryRowContext(ctx, "SELECT n FROM "+r.table.Name+" WHERE id = 1"+lock).Scan(&n)
	return n, err
}

func (r *row) writeBy(ctx context.Context, s session, n int) error {
	_, err := s.ExecContext(ctx, fmt.Sprintf("UPDATE %s SET n = %d, version = version + 1 WHERE id = 1", r.table.Name, n))
	return err
}

// cures are what the row's database has against the disease.
func (r *row) cures() []way {
	switch r.table.Dialect {
	case stores.SQLite:
		return []way{rowLock, version}
	default:
		return []way{rowLock, version, advisory}
	}
}

// under adds one in a way that the database has.
func (r *row) under(ctx context.Context, w way, think func(context.Context) error) (step, error) {
	switch w {
	case rowLock:
		return r.underRowLock(ctx, think)
	case version:
		return r.byVersion(ctx, think)
	case advisory:
		if r.table.Dialect == stores.MySQL {
			return r.underNamedLock(ctx, think)
		}
		return r.underAdvisoryLock(ctx, think)
	}
	return step{}, fmt.Errorf("there is no way %q", w)
}

// add reads, thinks, adds one and writes, in a session.
func (r *row) add(ctx context.Context, s session, lock string, think func(context.Context) error) (step, error) {
	n, err := r.readBy(ctx, s, lock)
	if err == nil {
		err = think(ctx)
	}
	if err == nil {
		err = r.writeBy(ctx, s, n+1)
	}
	return step{Read: n, Wrote: n + 1}, err
}

// underRowLock locks the row while it is read, until the transaction ends. SQLite
// has one lock for all of a file: its transactions begin IMMEDIATE, see stores.
func (r *row) underRowLock(ctx context.Context, think func(context.Context) error) (s step, err error) {
	lock := " FOR UPDATE"
	if r.table.Dialect == stores.SQLite {
		lock = ""
	}
	err = r.transact(ctx, func(tx *sql.Tx) error {
		s, err = r.add(ctx, tx, lock, think)
		return err
	})
	return s, err
}

// underAdvisoryLock holds a lock that has nothing to do with the row, until the
// transaction ends.
func (r *row) underAdvisoryLock(ctx context.Context, think func(context.Context) error) (s step, err error) {
	err = r.transact(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", "dibs race "+r.name); err != nil {
			return err
		}
		s, err = r.add(ctx, tx, "", think)
		return err
	})
	return s, err
}

// underNamedLock is underAdvisoryLock with a lock of a connection.
func (r *row) underNamedLock(ctx context.Context, think func(context.Context) error) (s step, err error) {
	conn, err := r.table.DB.Conn(ctx)
	if err != nil {
		return s, err
	}
	// What ends with an error ends with its connection, and so does the lock.
	defer func() {
		if err != nil {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		}
		_ = conn.Close()
	}()
	var got sql.NullInt64
	if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, 30)", "dibs race "+r.name).Scan(&got); err != nil {
		return s, err
	}
	if got.Int64 != 1 {
		return s, errors.New("the named lock was not to be had")
	}
	if s, err = r.add(ctx, conn, "", think); err != nil {
		return s, err
	}
	_, err = conn.ExecContext(ctx, "DO RELEASE_LOCK(?)", "dibs race "+r.name)
	return s, err
}

// byVersion writes only if nobody has written since, and else begins again.
func (r *row) byVersion(ctx context.Context, think func(context.Context) error) (s step, err error) {
	db := r.table.DB
	for {
		var n, seen int
		if err := db.QueryRowContext(ctx, "SELECT n, version FROM "+r.table.Name+" WHERE id = 1").Scan(&n, &seen); err != nil {
			return s, err
		}
		if err := think(ctx); err != nil {
			return s, err
		}
		result, err := db.ExecContext(ctx, fmt.Sprintf("UPDATE %s SET n = %d, version = version + 1 WHERE id = 1 AND version = %d", r.table.Name, n+1, seen))
		if err != nil {
			return s, err
		}
		wrote, err := result.RowsAffected()
		if err != nil {
			return s, err
		}
		if wrote == 1 {
			s.Read, s.Wrote = n, n+1
			return s, nil
		}
		s.Again++
		if err := pause(ctx, rand.N(10*time.Millisecond)); err != nil {
			return s, err
		}
	}
}

// transact runs f in a transaction.
func (r *row) transact(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := r.table.DB.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}
