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

// version is the version of the tables that this program needs.
const version = 1

// Migration takes a store's tables from one version to the next.
type Migration struct {
	// Version is the version that it makes.
	Version int
	// SQL is the migration: statements that each end with a semicolon and a new line. They can be
	// run again if some of them have been run before.
	SQL string
}

// Migrations returns the migrations of a new store, in order, for programs that run them in their
// own way, in the database of the store. Of the options it uses Prefix.
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

// Migrate makes the store's tables, or brings them up to date, in the connection's database. If
// they are up to date, it does nothing and needs only the right to read them. Many processes may
// call it at once. If it was interrupted, call it again. Of the options it uses Prefix.
//
// It returns ErrNewer if the tables are newer than this program, and otherwise the errors of Open.
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

// Version returns the version of the tables that exist, 0 if none do, and the version that this
// program needs. Of the options it uses Prefix. The errors are those of Open.
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
	return fmt.Errorf("%w: they have version %d, the program needs %d; use a newer program", ErrNewer, have, version)
}
