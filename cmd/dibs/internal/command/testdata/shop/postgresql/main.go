package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/stores/pgstore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	store, err := pgstore.New(ctx, pool, &pgstore.Options{Migrate: true})
	if err != nil {
		return err
	}
	defer store.Close()
	client, err := dibs.New(store, nil)
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS charge (id int GENERATED ALWAYS AS IDENTITY, amount int)"); err != nil {
		return err
	}
	guard, err := idempotency.New(client, &idempotency.Options{
		Transactor: store.Transactions(pool, nil),
		RequireKey: true, // without a key there is no transaction
	})
	if err != nil {
		return err
	}

	server := &http.Server{Addr: "127.0.0.1:8080", Handler: guard.Wrap(http.HandlerFunc(charge))}
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done() // no new requests; those that run get 30 s, and their answers are stored
		limit, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		stopped <- errors.Join(server.Shutdown(limit), guard.Drain(limit))
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

// charge writes in the transaction of its request, which is committed with the answer.
func charge(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	tx, ok := pgstore.Tx(ctx)
	if !ok { // a GET, which is not guarded
		http.Error(w, "charges are made by POST", http.StatusMethodNotAllowed)
		return
	}
	var id int
	err := tx.QueryRow(ctx, "INSERT INTO charge (amount) VALUES (700) RETURNING id").Scan(&id)
	if err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, "charge ", id)
}
