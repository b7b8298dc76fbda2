package pgstore

import (
	"context"
	"embed"
	"fmt"
	"hash/fnv"

	"github.com/jackc/pgx/v5"
)

//go:embed sql
var sources embed.FS

// version is that of the tables and functions that this program wants.
const version = 1

// files are what makes version 1: the tables, then the functions.
var files = []string{"001_schema", "plain", "transaction", "prune"}

// Migration takes a store's tables and functions from one version to the next.
type Migration struct {
	// Version is the one after it.
	Version int
	// SQL is what it takes, to be run as a whole or not at all.
	SQL string
}

// Migrations returns what there is to run for a new store, in order, for those who
// do so themselves: each in one transaction, after those before it. The schema has
// to be there. Of the options it uses Schema and Prefix.
func Migrations(o *Options) ([]Migration, error) {
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	names := namer{schema: options.Schema, prefix: options.Prefix}
	m := Migration{Version: 1}
	for _, name := range files {
		m.SQL += names.source(name)
	}
	return []Migration{m}, nil
}

// source returns one of the files, with the store's names.
func (n namer) source(name string) string {
	text, err := sources.ReadFile("sql/" + name + ".sql")
	if err != nil {
		panic(err) // it is part of the program
	}
	return n.sql(string(text))
}

// DB is what Migrate works on: a *pgxpool.Pool or a *pgx.Conn.
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Migrate makes the store's schema, tables and functions in one transaction. When they
// are there, it does nothing and needs no rights; many may call it at once. Of the
// options it uses Schema and Prefix. A release runs beside the one before it on the
// same database.
//
// It returns ErrNewer when the tables are newer than this program, and otherwise
// what Open does.
func Migrate(ctx context.Context, db DB, o *Options) error {
	options, err := o.withDefaults()
	if err != nil {
		return err
	}
	names := namer{schema: options.Schema, prefix: options.Prefix}
	tx, err := db.Begin(ctx)
	if err != nil {
		return explain(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if err := names.migrate(ctx, tx, &options); err != nil {
		return explain(err)
	}
	return explain(tx.Commit(ctx))
}

// Version returns the version of the tables that are there, 0 when there are none, and
// the one that this program wants. db is a *pgxpool.Pool, a *pgx.Conn or a pgx.Tx. Of
// the options it uses Schema and Prefix; the errors are those of Open.
func Version(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, o *Options) (have, want int, err error) {
	options, err := o.withDefaults()
	if err != nil {
		return 0, version, err
	}
	have, err = namer{schema: options.Schema, prefix: options.Prefix}.version(ctx, db)
	return have, version, explain(err)
}

func (n namer) migrate(ctx context.Context, tx pgx.Tx, o *Options) error {
	// One at a time; and what the one before did is seen, whatever level the connection
	// begins its transactions at.
	if _, err := tx.Exec(ctx, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"); err != nil {
		return err
	}
	lock := fnv.New64a()
	_, _ = fmt.Fprintf(lock, "dibs migration %s.%s", n.schema, n.prefix)
	if _, err := tx.Exec(ctx, fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", int64(lock.Sum64()))); err != nil {
		return err
	}
	have, err := n.version(ctx, tx)
	if err != nil || have == version {
		return err
	}
	if have > version {
		return tooNew(have)
	}
	var there bool
	err = tx.QueryRow(ctx, "SELECT to_regnamespace($1) IS NOT NULL", pgx.QueryExecModeExec, n.schema).Scan(&there)
	if err != nil {
		return err
	}
	if !there {
		if _, err := tx.Exec(ctx, `CREATE SCHEMA "`+n.schema+`"`); err != nil {
			return err
		}
	}
	all, err := Migrations(o)
	if err != nil {
		return err
	}
	for _, m := range all[have:] {
		if _, err := tx.Exec(ctx, m.SQL); err != nil {
			return fmt.Errorf("pgstore: migration %d: %w", m.Version, err)
		}
	}
	return nil
}

// asker is a connection, a pool or a transaction.
type asker interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// version returns that of the tables there are, 0 for none.
func (n namer) version(ctx context.Context, db asker) (v int, err error) {
	var there bool
	// Not by to_regclass: it may answer from what this session remembers, and a
	// session that looked before others made the tables would not see them.
	err = db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2)`, pgx.QueryExecModeExec, n.schema, n.prefix+"_meta").Scan(&there)
	if err != nil || !there {
		return 0, err
	}
	err = db.QueryRow(ctx, n.sql("SELECT version FROM @meta"), pgx.QueryExecModeExec).Scan(&v)
	return v, err
}

func tooNew(have int) error {
	return fmt.Errorf("%w: they have version %d, it knows %d; use a newer program", ErrNewer, have, version)
}
