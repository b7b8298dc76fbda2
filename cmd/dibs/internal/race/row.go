package race

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/dibs-go/dibs/internal/stores"
	"github.com/dibs-go/dibs/sqllock"
)

// row is a number in a row of a table that is there for this race. It can be kept
// whole by what the database has for that.
type row struct {
	name  string
	table *stores.Table
	kept  *sqllock.Row[counter]
}

// counter is what the row holds.
type counter struct{ n, version int }

// dialects are the databases that have rows.
var dialects = map[stores.Dialect]sqllock.Dialect{
	stores.Postgres: sqllock.PostgreSQL,
	stores.MySQL:    sqllock.MySQL,
	stores.SQLite:   sqllock.SQLite,
}

// attempts is how often a worker begins again at most: four others write once each.
const attempts = 20

// openRow finds the place for a row; nil where there is no SQL.
func openRow(s *stores.Store, name string) (*row, error) {
	t, err := s.Table(name)
	if t == nil || err != nil {
		return nil, err
	}
	marks := "n = ?, version = version + 1 WHERE id = 1 AND version = ?"
	if t.Dialect == stores.Postgres {
		marks = "n = $1, version = version + 1 WHERE id = 1 AND version = $2"
	}
	kept, err := sqllock.NewRow(dialects[t.Dialect], &sqllock.RowOptions[counter]{
		Select:   "SELECT n, version FROM " + t.Name + " WHERE id = 1",
		Fields:   func(c *counter) []any { return []any{&c.n, &c.version} },
		Update:   "UPDATE " + t.Name + " SET " + marks,
		Values:   func(c *counter) []any { return []any{c.n, c.version} },
		Attempts: attempts,
	})
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return &row{name, t, kept}, nil
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

func (r *row) read(ctx context.Context) (int, error) { return r.readBy(ctx, r.table.DB) }

func (r *row) write(ctx context.Context, n int) error { return r.writeBy(ctx, r.table.DB, n) }

func (r *row) readBy(ctx context.Context, s session) (n int, err error) {
	err = s.QueryRowContext(ctx, "SELECT n FROM "+r.table.Name+" WHERE id = 1").Scan(&n)
	return n, err
}

func (r *row) writeBy(ctx context.Context, s session, n int) error {
	_, err := s.ExecContext(ctx, fmt.Sprintf("UPDATE %s SET n = %d, version = version + 1 WHERE id = 1", r.table.Name, n))
	return err
}

// cures are what the row's database has against the disease.
func (r *row) cures() []way {
	if r.table.Dialect == stores.SQLite {
		return []way{rowLock, version}
	}
	return []way{rowLock, version, advisory}
}

// under adds one in a way that the database has.
func (r *row) under(ctx context.Context, w way, think func(context.Context) error) (step, error) {
	switch {
	case w == rowLock:
		return r.underRowLock(ctx, think)
	case w == version:
		return r.byVersion(ctx, think)
	case w == advisory && r.table.Dialect == stores.MySQL:
		return r.underNamedLock(ctx, think)
	case w == advisory:
		return r.underAdvisoryLock(ctx, think)
	}
	return step{}, fmt.Errorf("there is no way %q", w)
}

// underRowLock locks the row while it is read, until the transaction ends.
func (r *row) underRowLock(ctx context.Context, think func(context.Context) error) (s step, err error) {
	_, err = r.kept.Update(ctx, r.table.DB, func(ctx context.Context, _ *sql.Tx, c *counter) error {
		s.Read, s.Wrote = c.n, c.n+1
		c.n++
		return think(ctx)
	})
	return s, err
}

// byVersion writes only if nobody has written since, and else begins again.
func (r *row) byVersion(ctx context.Context, think func(context.Context) error) (s step, err error) {
	s.Again = -1
	_, err = r.kept.UpdateOptimistic(ctx, r.table.DB, func(ctx context.Context, c *counter) error {
		s.Again++
		s.Read, s.Wrote = c.n, c.n+1
		c.n++
		return think(ctx)
	})
	return s, err
}

// add reads, thinks, adds one and writes, in a session.
func (r *row) add(ctx context.Context, s session, think func(context.Context) error) (step, error) {
	n, err := r.readBy(ctx, s)
	if err == nil {
		err = think(ctx)
	}
	if err == nil {
		err = r.writeBy(ctx, s, n+1)
	}
	return step{Read: n, Wrote: n + 1}, err
}

// lockName is what advisory and named locks are of, which have nothing to do with
// the row.
func (r *row) lockName() string { return "dibs race " + r.name }

// underAdvisoryLock holds a lock until the transaction ends, which works through a
// pooler too.
func (r *row) underAdvisoryLock(ctx context.Context, think func(context.Context) error) (s step, err error) {
	err = sqllock.Transact(ctx, sqllock.PostgreSQL, r.table.DB, nil, func(ctx context.Context, tx *sql.Tx) error {
		if err := sqllock.LockTx(ctx, tx, sqllock.NameKey("", r.lockName()), nil); err != nil {
			return err
		}
		s, err = r.add(ctx, tx, think)
		return err
	})
	return s, err
}

// underNamedLock holds a lock of a connection.
func (r *row) underNamedLock(ctx context.Context, think func(context.Context) error) (s step, err error) {
	named, err := sqllock.NewNamed(ctx, r.table.DB, nil)
	if err != nil {
		return s, err
	}
	err = named.Do(ctx, r.lockName(), nil, func(ctx context.Context) error {
		s, err = r.add(ctx, r.table.DB, think)
		return err
	})
	return s, err
}
