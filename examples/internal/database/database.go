// Package database opens the database of an example: SQLite in a temporary folder, so
// that nothing has to be installed, or the PostgreSQL database that DATABASE_URL names, in
// a schema of its own. Both are removed when the example ends.
package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqllock"
	"github.com/dibs-go/dibs/stores/pgstore"
	"github.com/dibs-go/dibs/stores/sqlitestore"
)

// Database is the application's own, and has the keys of dibs beside the
// application's tables. Both databases understand $1 for a parameter.
type Database struct {
	*sql.DB
	// Name is what Join finds the database by.
	Name string
	// Dialect is what sqllock wants to know.
	Dialect sqllock.Dialect
	// Store has the keys, and Transactor commits what the application writes together
	// with one of them: Tx is how a function finds the transaction it runs in.
	Store      dibs.Store
	Transactor dibs.Transactor
	Tx         func(context.Context) (*sql.Tx, bool)

	close []func() error // in this order
}

// Make makes a database. Close removes it.
func Make(ctx context.Context) (*Database, error) {
	if os.Getenv("DATABASE_URL") != "" {
		d, err := Join(ctx, fmt.Sprintf("dibs_example_%08x", rand.Uint32()))
		if err != nil {
			return nil, err
		}
		drop := func() error {
			_, err := d.Exec("DROP SCHEMA " + d.Name + " CASCADE")
			return err
		}
		d.close = slices.Insert(d.close, 1, drop) // after the store, which works in it
		return d, nil
	}
	folder, err := os.MkdirTemp("", "dibs-example-")
	if err != nil {
		return nil, err
	}
	remove := func() error { return os.RemoveAll(folder) }
	d, err := Join(ctx, filepath.Join(folder, "example.db"))
	if err != nil {
		return nil, errors.Join(err, remove())
	}
	d.close = append(d.close, remove)
	return d, nil
}

// Join opens a database that another process has made, by its name.
func Join(ctx context.Context, name string) (*Database, error) {
	if url := os.Getenv("DATABASE_URL"); url != "" {
		return joinPostgres(ctx, url, name)
	}
	// Shared: the file is the application's, and the store's tables are in it, too.
	store, err := sqlitestore.Open(name, &sqlitestore.Options{Shared: true, LockWait: time.Minute})
	if err != nil {
		return nil, err
	}
	db, err := store.OpenDB()
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return &Database{
		DB: db, Name: name, Dialect: sqllock.SQLite,
		Store: store, Transactor: store.Transactions(db), Tx: sqlitestore.Tx,
		close: []func() error{db.Close, store.Close},
	}, nil
}

func joinPostgres(ctx context.Context, url, schema string) (*Database, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("DATABASE_URL has to be like postgres://user@host/database: %w", err)
	}
	config.ConnConfig.RuntimeParams["search_path"] = schema
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	o := &pgstore.Options{Schema: schema}
	if err := pgstore.Migrate(ctx, pool, o); err != nil {
		pool.Close()
		return nil, err
	}
	store, err := pgstore.New(ctx, pool, o)
	if err != nil {
		pool.Close()
		return nil, err
	}
	db := stdlib.OpenDBFromPool(pool)
	return &Database{
		DB: db, Name: schema, Dialect: sqllock.PostgreSQL,
		Store: store, Transactor: store.SQLTransactions(db, nil), Tx: pgstore.SQLTx,
		close: []func() error{store.Close, db.Close, func() error { pool.Close(); return nil }},
	}, nil
}

// Close closes the database, and removes it if it was made here. Close first what
// uses the Store.
func (d *Database) Close() error {
	var errs []error
	for _, c := range d.close {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}
