package stores

import (
	"context"
	"database/sql"
	"errors"
)

// Dialect is the SQL that a database speaks.
type Dialect string

// The dialects of the databases that a store can be in.
const (
	Postgres Dialect = "PostgreSQL"
	MySQL    Dialect = "MySQL"
	SQLite   Dialect = "SQLite"
)

// Table is a place in the store's database, or beside its file, for a table that
// somebody wants for a moment. It is not made yet.
type Table struct {
	// DB is the database, by connections that are not the store's.
	DB      *sql.DB
	Dialect Dialect
	// Name is the table's, quoted, with its schema.
	Name string

	drop func(context.Context) error
}

// Drop removes the table, if it is there.
func (t *Table) Drop(ctx context.Context) error { return t.drop(ctx) }

// Close closes the connections, and leaves the table.
func (t *Table) Close() error { return t.DB.Close() }

// drop returns how a table in a database is removed.
func drop(db *sql.DB, quoted string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := db.ExecContext(ctx, "DROP TABLE IF EXISTS "+quoted)
		return err
	}
}

// Table returns the table of that name, which has letters and digits only, or nil
// if the store is in no database that knows SQL.
func (s *Store) Table(name string) (*Table, error) {
	if s.table == nil {
		return nil, nil
	}
	t, err := s.table(name)
	if err != nil {
		return nil, errors.Join(ErrUnusable, err)
	}
	return t, nil
}
