package mysqlstore

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"regexp"
	"strings"
)

//go:embed sql/001_schema.sql
var schema string

// version is that of the tables that this program wants.
const version = 1

// Migration takes a store's tables from one version to the next.
type Migration struct {
	// Version is the one after it.
	Version int
	// SQL is what it takes: statements with a semicolon and the end of the line
	// behind each. They can be run again when some of them have been run already.
	SQL string
}

// Migrations returns what there is to run for a new store, in order, for those who
// do so themselves, in the database that the store is to be in. Of the options it
// uses Prefix.
func Migrations(o *Options) ([]Migration, error) {
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return []Migration{{Version: 1, SQL: namer{prefix: options.Prefix}.sql(schema)}}, nil
}

// DB is what Migrate works on: a *sql.DB.
type DB interface {
	Conn(ctx context.Context) (*sql.Conn, error)
}

var _ DB = (*sql.DB)(nil)

// Migrate makes the store's tables, or brings them up to date, in the database that
// the connection is for. When they are, it does nothing and needs no rights but to
// read them; many may call it at once, and one that was cut short is made up for by
// the next. Of the options it uses Prefix.
//
// It returns ErrNewer when the tables are newer than this program, and otherwise
// what Open does.
func Migrate(ctx context.Context, db DB, o *Options) error {
	all, err := Migrations(o)
	if err != nil {
		return err
	}
	have, _, err := Version(ctx, db, o)
	switch {
	case err != nil || have == version:
		return err
	case have > version:
		return tooNew(have)
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return explain(err)
	}
	defer conn.Close()
	for _, m := range all[have:] {
		text := regexp.MustCompile(`(?m)--.*$`).ReplaceAllString(m.SQL, "")
		for statement := range strings.SplitSeq(strings.TrimSpace(text)+"\nCOMMIT;", ";\n") {
			if _, err := conn.ExecContext(ctx, statement); err != nil {
				return explain(fmt.Errorf("mysqlstore: migration %d: %w", m.Version, err))
			}
		}
	}
	return nil
}

// Version returns the version of the tables that are there, 0 when there are none, and
// the one that this program wants. Of the options it uses Prefix; the errors are those
// of Open.
func Version(ctx context.Context, db DB, o *Options) (have, want int, err error) {
	options, err := o.withDefaults()
	if err != nil {
		return 0, version, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return 0, version, explain(err)
	}
	defer conn.Close()
	n := namer{prefix: options.Prefix}
	err = conn.QueryRowContext(ctx, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema=DATABASE() AND table_name='"+n.table("meta")+"'").Scan(&have)
	if err == nil && have > 0 {
		err = conn.QueryRowContext(ctx, n.sql("SELECT COALESCE(MAX(version),0) FROM @meta")).Scan(&have)
	}
	return have, version, explain(err)
}

func tooNew(have int) error {
	return fmt.Errorf("%w: they have version %d, it knows %d; use a newer program", ErrNewer, have, version)
}
