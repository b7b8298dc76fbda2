package sqllock

import (
	"context"
	"database/sql"
	"fmt"
)

// ownTable is a table of this package in the application's database.
type ownTable struct {
	d      Dialect
	name   string // as it was given
	sql    string // quoted
	schema string // the SQL that makes it
}

// newTable names a table. columns are what is in it, for each of PostgreSQL, MySQL
// and SQLite; field says for errors where the name came from.
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

// migrate makes the table unless it is there.
func (t *ownTable) migrate(ctx context.Context, db *sql.DB) error {
	for attempt := 1; ; attempt++ {
		_, err := db.ExecContext(ctx, t.schema)
		if err == nil {
			return nil
		}
		// Of several processes that make it at once, PostgreSQL tells all but one
		// that a part of it is there already.
		again := t.d.Conflicted(err)
		if t.d == PostgreSQL {
			switch sqlState(err) {
			case "23505", "42P07", "42710":
				again = true
			}
		}
		if !again || attempt == defaultAttempts {
			return fmt.Errorf("sqllock: making the table %s: %w", t.name, err)
		}
		if ended := pause(ctx, attempt); ended != nil {
			return fmt.Errorf("sqllock: making the table %s: %w", t.name, ended)
		}
	}
}

// fault says what failed, and what to do if the table is not there.
func (t *ownTable) fault(what string, err error) error {
	if t.d.noTable(err) {
		return fmt.Errorf("sqllock: %s: %w; Migrate makes the table %s, or what Schema returns", what, err, t.name)
	}
	return fmt.Errorf("sqllock: %s: %w", what, err)
}
