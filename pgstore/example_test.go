package pgstore_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/pgstore"
)

// startPostgres stands for the server that you have.
func startPostgres() (url string, stop func()) {
	scope := servertest.NewScope()
	return servertest.Postgres(scope, nil).URL(), scope.Close
}

func Example() {
	url, stop := startPostgres()
	defer stop()
	ctx := context.Background()

	store, err := pgstore.Open(ctx, url, &pgstore.Options{Migrate: true})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	client, err := dibs.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	err = client.Do(ctx, "invoice 7", func(ctx context.Context) error {
		fmt.Println("one process at a time, on all hosts")
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: one process at a time, on all hosts
}

// A program that has a pool gives it to New. The store makes connections of its
// own like those.
func ExampleNew() {
	url, stop := startPostgres()
	defer stop()
	ctx := context.Background()

	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := pgstore.Migrate(ctx, pool, &pgstore.Options{Schema: "locks"}); err != nil {
		log.Fatal(err)
	}

	store, err := pgstore.New(ctx, pool, &pgstore.Options{Schema: "locks"})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	client, err := dibs.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	for range 2 {
		number, err := dibs.Once(ctx, client, "order 7", nil, func(context.Context) (int, error) {
			fmt.Println("working")
			return 42, nil
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(number)
	}
	// Output:
	// working
	// 42
	// 42
}

// Who applies SQL by other means prints it.
func ExampleMigrations() {
	all, err := pgstore.Migrations(&pgstore.Options{Schema: "app", Prefix: "dibs"})
	if err != nil {
		log.Fatal(err)
	}
	for line := range strings.Lines(all[0].SQL) {
		if strings.HasPrefix(line, "CREATE TABLE") {
			fmt.Print(line)
		}
	}
	// Output:
	// CREATE TABLE "app"."dibs_meta" (
	// CREATE TABLE "app"."dibs_key" (
	// CREATE TABLE "app"."dibs_holder" (
	// CREATE TABLE "app"."dibs_waiter" (
	// CREATE TABLE "app"."dibs_progress" (
}
