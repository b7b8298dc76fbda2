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

// version is the version of the tables and functions that this program needs.
const version = 2

// migrations make the versions, one each. The last one has all functions, which replace those
// that exist.
var migrations = [version][]string{{"001_schema"}, {"002_by_sql", "plain", "transaction", "prune", "decide", "lease"}}

// Migration takes a store's tables and functions from one version to the next.
type Migration struct {
	// Version is the version that it makes.
	Version int
	// SQL is the migration, to be run in one transaction.
	SQL string
}

// Migrations returns the migrations of a new store, in order, for programs that run them in their
// own way: each in one transaction. The schema has to exist. Of the options it uses Schema and
// Prefix.
func Migrations(o *Options) ([]Migration, error) {
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	names := namer{schema: options.Schema, prefix: options.Prefix}
	all := make([]Migration, len(migrations))
	for i, files := range migrations {
		all[i].Version = i + 1
		for _, name := range files {
			all[i].SQL += names.source(name)
		}
	}
	return all, nil
}

// source returns a file, with the store's names.
func (n namer) source(name string) string {
	text, err := sources.ReadFile("sql/" + name + ".sql")
	if err != nil {
		panic(err) // it is embedded
	}
	return n.sql(string(text))
}

// schemaExists returns an error if the store's schema does not exist. A schema with a misspelt name
// would be a store of its own, so only Migrate makes one, which is called on purpose.
func (n namer) schemaExists(ctx context.Context, db asker) error {
	var there bool
	err := db.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", pgx.QueryExecModeExec, n.schema).Scan(&there)
	if err != nil || there {
		return err
	}
	return fault(ErrNoSchema, fmt.Errorf("its name is %q", n.schema),
		"correct its name, or make it and the tables with pgstore.Migrate or dibs migrate; a store in another schema excludes nobody here")
}

// DB is what Migrate works on: a *pgxpool.Pool or a *pgx.Conn.
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Migrate makes the store's schema, tables and functions in one transaction. If they exist, it
// does nothing and needs no rights. Many processes may call it at once. Of the options it uses
// Schema and Prefix. A release runs beside the release before it on the same database.
//
// It returns ErrNewer if the tables are newer than this program, and otherwise the errors of Open.
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

func (n namer) migrate(ctx context.Context, tx pgx.Tx, o *Options) error {
	// A migration must see what the last one did, whatever the isolation level of the connection.
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

// version returns the version of the tables, 0 if there are none.
func (n namer) version(ctx context.Context, db asker) (v int, err error) {
	var there bool
	// Not by to_regclass, because its answer may come from the session's cache, which does not
	// have tables that another session has made since.
	err = db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2)`, pgx.QueryExecModeExec, n.schema, n.prefix+"_meta").Scan(&there)
	if err != nil || !there {
		return 0, err
	}
	err = db.QueryRow(ctx, n.sql("SELECT version FROM @meta"), pgx.QueryExecModeExec).Scan(&v)
	return v, err
}

func tooNew(have int) error {
	return fmt.Errorf("%w: they have version %d, the program needs %d; use a newer program", ErrNewer, have, version)
}
