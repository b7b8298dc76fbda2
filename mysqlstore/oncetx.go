package mysqlstore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/dibs-go/dibs"
)

// OnceTx runs fn once under the key, in a transaction of t (see Store.Transactions):
// what fn does in it and what it returns are committed together, and whoever asks
// under the key gets that, in any process, until the retention is over. See
// dibs.OnceIn for what it returns and when fn is called again, and Tx for what fn must
// leave alone. The context that fn gets carries the transaction too.
func OnceTx[T any](ctx context.Context, c *dibs.Client, t dibs.Transactor, key string, o *dibs.OnceOptions, fn func(context.Context, *sql.Tx) (T, error)) (T, error) {
	return dibs.OnceIn(ctx, c, t, key, o, func(ctx context.Context) (result T, err error) {
		tx, ok := Tx(ctx)
		if !ok {
			return result, errors.New("mysqlstore: OnceTx wants a Transactor that Store.Transactions made")
		}
		return fn(ctx, tx)
	})
}
