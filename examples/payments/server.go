package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/examples/internal/crash"
	"github.com/dibs-go/dibs/examples/internal/database"
	"github.com/dibs-go/dibs/idempotency"
)

// payments serves POST /payments.
type payments struct {
	db  *database.Database
	way string
}

// apart is the usual code: it looks the key up, and writes the answer, in statements of
// their own. Writing the key first would be no better, because a server that dies before
// the booking would lose the payment.
func (p *payments) apart(w http.ResponseWriter, r *http.Request) {
	var receipt string
	key := r.Header.Get("Idempotency-Key")
	err := p.db.QueryRowContext(r.Context(), "SELECT receipt FROM answer WHERE key = $1", key).Scan(&receipt)
	if errors.Is(err, sql.ErrNoRows) {
		receipt, err = p.book(r.Context(), p.db)
		if err == nil {
			_, err = p.db.ExecContext(r.Context(), "INSERT INTO answer VALUES ($1, $2)", key, receipt)
		}
	}
	answer(w, receipt, err)
}

// together runs behind the middleware, which has begun a transaction for the request, and
// commits it together with the answer.
func (p *payments) together(w http.ResponseWriter, r *http.Request) {
	tx, ok := p.db.Tx(r.Context())
	if !ok {
		answer(w, "", errors.New("no transaction"))
		return
	}
	receipt, err := p.book(r.Context(), tx)
	answer(w, receipt, err)
}

// book makes an entry in the ledger. There must be only one; a second entry would have
// another receipt.
func (p *payments) book(ctx context.Context, db interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}) (receipt string, err error) {
	receipt = rand.Text()
	if _, err := db.ExecContext(ctx, "INSERT INTO ledger VALUES ($1, $2, $3)", p.way, receipt, amount); err != nil {
		return "", err
	}
	crash.Point() // booked, but not answered
	return receipt, nil
}

func answer(w http.ResponseWriter, receipt string, err error) {
	if err != nil {
		http.Error(w, "not now", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"receipt":%q}`, receipt)
}

// serve is what a server's process does.
func serve(ctx context.Context, way, name string) error {
	db, err := database.Join(ctx, name)
	if err != nil {
		return err
	}
	p := &payments{db: db, way: way}
	if way == "apart" {
		return crash.Serve(http.HandlerFunc(p.apart))
	}
	client, err := dibs.New(db.Store, nil)
	if err != nil {
		return err
	}
	once, err := idempotency.New(client, &idempotency.Options{
		Transactor: db.Transactor,
		RequireKey: true,
		Lease:      2 * time.Second, // a retry waits for this time if the server died
	})
	if err != nil {
		return err
	}
	return crash.Serve(once.Wrap(http.HandlerFunc(p.together)))
}
