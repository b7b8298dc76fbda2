package frameworks

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/stores/pgstore"
)

// Sqlc books a charge by queries as sqlc writes them, in the transaction of the request.
// The middleware's Transactor is store.Transactions(pool, nil).
func Sqlc(w http.ResponseWriter, r *http.Request) {
	amount, err := io.ReadAll(r.Body)
	tx, ok := pgstore.Tx(r.Context())
	if err != nil || !ok {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	id, err := New(tx).CreateCharge(r.Context(), string(amount))
	if err != nil {
		w.WriteHeader(http.StatusUnprocessableEntity) // rolled back
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, "charge ", id)
}

// DBTX is what sqlc's queries need: a pool, a connection or a transaction.
type DBTX interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Queries has a method for each query.
type Queries struct{ db DBTX }

// New returns the queries on db.
func New(db DBTX) *Queries { return &Queries{db} }

// CreateCharge inserts a charge and returns its ID.
func (q *Queries) CreateCharge(ctx context.Context, amount string) (int64, error) {
	var id int64
	err := q.db.QueryRow(ctx, "INSERT INTO charges (amount) VALUES ($1) RETURNING id", amount).Scan(&id)
	return id, err
}
