package backend

import (
	"context"
	"database/sql"
	"errors"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs/mysqlstore"
	"github.com/dibs-go/dibs/proof/torture"
)

func openMySQL(ctx context.Context, url string) (*torture.Store, error) {
	s, err := mysqlstore.Open(ctx, url, nil)
	if errors.Is(err, mysqlstore.ErrNotMigrated) {
		s, err = mysqlstore.Open(ctx, url, &mysqlstore.Options{Migrate: true})
	}
	if err != nil {
		return nil, err
	}
	config, _, err := mysqlstore.ParseURL(url, nil)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(poolSize)
	return &torture.Store{
		Store:  s,
		Close:  func() error { return closeBoth(db, s.Close) },
		Ledger: &torture.Ledger{DB: db, Transactor: s.Transactions(db, nil), Tx: found(mysqlstore.Tx)},
	}, nil
}
