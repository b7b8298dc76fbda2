package pgstore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
)

// OnceTx runs fn once under the key, in a transaction of t (see Store.Transactions). It commits
// the effect of fn together with its result. Later calls under the key return that result, in any
// process, until the retention is over. See dibs.OnceIn for the errors, and for when fn is called
// again. The context of fn carries the transaction too.
func OnceTx[T any](ctx context.Context, c *dibs.Client, t store.Transactor, key string, o *dibs.OnceOptions, fn func(context.Context, pgx.Tx) (T, error)) (T, error) {
	return dibs.OnceIn(ctx, c, t, key, o, func(ctx context.Context) (result T, err error) {
		tx, ok := Tx(ctx)
		if !ok {
			return result, errors.New("pgstore: OnceTx wants a Transactor that Store.Transactions made")
		}
		return fn(ctx, tx)
	})
}

// OnceSQL is OnceTx for database/sql (see Store.SQLTransactions).
func OnceSQL[T any](ctx context.Context, c *dibs.Client, t store.Transactor, key string, o *dibs.OnceOptions, fn func(context.Context, *sql.Tx) (T, error)) (T, error) {
	return dibs.OnceIn(ctx, c, t, key, o, func(ctx context.Context) (result T, err error) {
		tx, ok := SQLTx(ctx)
		if !ok {
			return result, errors.New("pgstore: OnceSQL wants a Transactor that Store.SQLTransactions made")
		}
		return fn(ctx, tx)
	})
}
