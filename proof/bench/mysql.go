package main

import (
	"context"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/stores/mysqlstore"
)

// openMySQL starts a MariaDB server with its own settings, which waits for its disk.
func openMySQL(ctx context.Context) (b *candidates, err error) {
	b = newCandidates()
	defer func() {
		if err != nil {
			b.end()
		}
	}()
	server := servertest.MariaDB(b.scope, &servertest.MariaDBOptions{MaxConnections: 5 * callersConns})
	for range 2 { // processes
		store, err := mysqlstore.Open(ctx, server.URL(), &mysqlstore.Options{Migrate: true})
		if err != nil {
			return b, err
		}
		if err := b.enter(store, store.Close); err != nil {
			return b, err
		}
	}
	return b, b.enterSingly(func() (dibs.Store, func() error, error) {
		store, err := mysqlstore.Open(ctx, server.URL(), &mysqlstore.Options{PruneEvery: -1})
		if err != nil {
			return nil, nil, err
		}
		return store, store.Close, nil
	})
}
