package sqllock

import (
	"context"
	"database/sql"
	"fmt"
)

// ownTable is a table of this package in the application's database.
type ownTable struct {
	d      Dialect
	name   string // as the caller gave it
	sql    string // quoted
	schema string // the SQL that creates it
}

// newTable returns a table. columns are its columns for PostgreSQL, MySQL and SQLite.
// field names the option in errors.
func newTable(d Dialect, field, name string, columns [3]string) (ownTable, error) {
	if err := d.validate(); err != nil {
		return ownTable{}, err
	}
	quoted, err := d.table(field, name)
	if err != nil {
		return ownTable{}, err
	}
	t := ownTable{d: d, name: name, sql: quoted}
	text := columns[0]
	switch {
	case d.mysql():
		text = columns[1]
	case d == SQLite:
		text = columns[2]
	}
	t.schema = fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s %s;\n", quoted, text)
	return t, nil
}

// migrate creates the table if it does not exist.
func (t *ownTable) migrate(ctx context.Context, db *sql.DB) error {
	for try := 1; ; try++ {
		_, err := db.ExecContext(ctx, t.schema)
		if err == nil {
			return nil
		}
		// When several processes create the table at once, PostgreSQL returns one of
		// these to all but one of them.
		again := t.d.Conflicted(err)
		if t.d == PostgreSQL {
			switch sqlState(err) {
			case "23505", "42P07", "42710":
				again = true
			}
		}
		if !again || try == defaultTries {
			return fmt.Errorf("sqllock: create the table %s: %w", t.name, err)
		}
		if ended := conflictPause.Wait(ctx, try); ended != nil {
			return fmt.Errorf("sqllock: create the table %s: %w", t.name, ended)
		}
	}
}

// fault adds what failed, and what to do if the table does not exist.
func (t *ownTable) fault(what string, err error) error {
	if t.d.noTable(err) {
		return fmt.Errorf("sqllock: %s: %w; create the table %s with Migrate, or with the SQL of Schema", what, err, t.name)
	}
	return fmt.Errorf("sqllock: %s: %w", what, err)
}
