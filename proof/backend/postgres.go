package backend

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/dibs-go/dibs/pgstore"
	"github.com/dibs-go/dibs/proof/torture"
)

// poolSize is how many connections a worker has for its transactions, at most.
const poolSize = 8

func openPostgres(ctx context.Context, url string) (*torture.Store, error) {
	s, err := pgstore.Open(ctx, url, nil)
	if errors.Is(err, pgstore.ErrNotMigrated) {
		s, err = pgstore.Open(ctx, url, &pgstore.Options{Migrate: true})
	}
	if err != nil {
		return nil, err
	}
	config, options, err := pgstore.Parse(url, nil)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	conn := config.ConnConfig
	conn.DefaultQueryExecMode = pgx.QueryExecModeExec // works through a pooler too
	conn.RuntimeParams["application_name"] = "dibs torture"
	db := stdlib.OpenDB(*conn)
	db.SetMaxOpenConns(poolSize)
	return &torture.Store{
		Store: s,
		Close: func() error { return closeBoth(db, s.Close) },
		Ledger: &torture.Ledger{
			DB: db, Transactor: s.SQLTransactions(db, nil), Tx: found(pgstore.SQLTx), Schema: quoted(options.Schema, `"`), Dollar: true,
		},
	}, nil
}

// quoted returns a name in quotes; "" for none.
func quoted(name, quote string) string {
	if name == "" {
		return ""
	}
	return quote + name + quote
}
