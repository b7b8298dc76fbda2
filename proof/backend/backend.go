// Package backend opens stores by their URLs for runs of torture, with what those need
// beside a dibs.Store: transactions of the database that the keys are in.
package backend

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/dibs-go/dibs/proof/torture"
	"github.com/dibs-go/dibs/redisstore"
	"github.com/dibs-go/dibs/sqlitestore"
)

// Open opens the store that the URL names, as the program dibs reads URLs; its tables are
// made if they are missing. It is a torture.Open.
//
// A store in memory is refused: several processes cannot share one.
func Open(ctx context.Context, url string) (*torture.Store, error) {
	scheme, rest, _ := strings.Cut(url, ":")
	switch scheme {
	case "sqlite":
		return openSQLite(rest)
	case "postgres", "postgresql":
		return openPostgres(ctx, url)
	case "mysql", "mariadb":
		return openMySQL(ctx, url)
	case "memory":
		return nil, errors.New("processes share no store in memory: name another")
	}
	if strings.HasPrefix(scheme, "redis") {
		return openRedis(ctx, url)
	}
	return nil, fmt.Errorf("nobody here knows the scheme %q of a store's URL", scheme)
}

// openSQLite opens a file. Only one that is an application's has transactions of
// applications, and then it says shared=true.
func openSQLite(rest string) (*torture.Store, error) {
	path, query, _ := strings.Cut(rest, "?")
	shared := query == "shared=true"
	s, err := sqlitestore.Open(path, &sqlitestore.Options{Shared: shared})
	if err != nil {
		return nil, err
	}
	t := &torture.Store{Store: s, Close: s.Close}
	if !shared {
		return t, nil
	}
	db, err := s.OpenDB()
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	t.Close = func() error { return closeBoth(db, s.Close) }
	t.Ledger = &torture.Ledger{DB: db, Transactor: s.Transactions(db), Tx: sqlitestore.Begin}
	return t, nil
}

func openRedis(ctx context.Context, url string) (*torture.Store, error) {
	s, err := redisstore.Open(ctx, url, nil)
	if err != nil {
		return nil, err
	}
	return &torture.Store{Store: s, Close: s.Close}, nil
}

// closeBoth closes a database and then the store. What the database says is about
// connections that a fault has broken while they were idle.
func closeBoth(db *sql.DB, store func() error) error {
	_ = db.Close()
	return store()
}

// errNoTransaction says that a ledger was given another's transaction.
var errNoTransaction = errors.New("backend: the context carries no transaction of the store's")

// found returns what a store's Tx does with an error in place of a bool.
func found(tx func(context.Context) (*sql.Tx, bool)) func(context.Context) (*sql.Tx, error) {
	return func(ctx context.Context) (*sql.Tx, error) {
		t, ok := tx(ctx)
		if !ok {
			return nil, errNoTransaction
		}
		return t, nil
	}
}
