package pgstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/stores/pgstore"
)

// startPostgres stands for the server that you have.
func startPostgres() (url string) { return pgstore.NewDatabase() }

// open opens a pool, a store and a client as Example and ExampleNew do, and makes a table of the application.
func open(ctx context.Context, url, table string) (pool *pgxpool.Pool, store *pgstore.Store, client *dibs.Client) {
	pool, err := pgxpool.New(ctx, url)
	if err == nil {
		_, err = pool.Exec(ctx, "CREATE TABLE "+table)
	}
	if err == nil {
		store, err = pgstore.New(ctx, pool, &pgstore.Options{Migrate: true})
	}
	if err == nil {
		client, err = dibs.New(store, nil)
	}
	if err != nil {
		log.Fatal(err)
	}
	return pool, store, client
}

func Example() {
	url := startPostgres()
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
	url := startPostgres()
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

// What is done in the transaction and the answer are committed together, so that it
// is done exactly once, whatever crashes when.
func ExampleOnceTx() {
	ctx := context.Background()
	pool, store, client := open(ctx, startPostgres(), "ledger (account int, amount int)")
	defer pool.Close()
	defer store.Close()
	defer client.Close()
	transactions := store.Transactions(pool, nil)

	for range 2 {
		total, err := pgstore.OnceTx(ctx, client, transactions, "payment 7", nil,
			func(ctx context.Context, tx pgx.Tx) (total int, err error) {
				if _, err := tx.Exec(ctx, "INSERT INTO ledger VALUES (12, 990)"); err != nil {
					return 0, err
				}
				err = tx.QueryRow(ctx, "SELECT sum(amount) FROM ledger WHERE account = 12").Scan(&total)
				return total, err
			})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(total)
	}
	// Output:
	// 990
	// 990
}

// The same with database/sql: a statement that fails takes the whole run back, and
// the next one runs.
func ExampleOnceSQL() {
	url := startPostgres()
	ctx := context.Background()
	pool, store, client := open(ctx, url, "seats (seat int PRIMARY KEY, guest text NOT NULL)")
	defer pool.Close()
	defer store.Close()
	defer client.Close()
	db, err := sql.Open("pgx", url)
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	transactions := store.SQLTransactions(db, nil)

	guests := []any{nil, "Ada", "Grace"}
	for _, guest := range guests {
		seat, err := pgstore.OnceSQL(ctx, client, transactions, "booking 7", nil,
			func(ctx context.Context, tx *sql.Tx) (string, error) {
				_, err := tx.ExecContext(ctx, "INSERT INTO seats VALUES (12, $1)", guest)
				return fmt.Sprint("seat 12 for ", guest), err
			})
		if err != nil {
			fmt.Println("nothing is booked")
			continue
		}
		fmt.Println(seat)
	}
	// Output:
	// nothing is booked
	// seat 12 for Ada
	// seat 12 for Ada
}

// A job is inserted and its place in the queue reserved together. Jobs of one key are
// run in the order in which they were committed.
func ExampleStore_Reserver() {
	ctx := context.Background()
	pool, store, client := open(ctx, startPostgres(), "jobs (id serial, message text, place text)")
	defer pool.Close()
	defer store.Close()
	defer client.Close()

	// In the service.
	for _, message := range []string{"hello", "anybody there?"} {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			place, err := client.ReserveIn(ctx, store.Reserver(tx), "conversation 7", 24*time.Hour, &dibs.PlaceOptions{Grace: time.Minute})
			if err != nil {
				return err
			}
			text, err := place.MarshalText()
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, "INSERT INTO jobs (message, place) VALUES ($1, $2)", message, string(text))
			return err
		})
		if err != nil {
			log.Fatal(err)
		}
	}

	// In the workers, which may take up the jobs in any order.
	var all sync.WaitGroup
	for _, id := range []int{2, 1} {
		all.Go(func() {
			var message, text string
			if err := pool.QueryRow(ctx, "SELECT message, place FROM jobs WHERE id = $1", id).Scan(&message, &text); err != nil {
				log.Fatal(err)
			}
			var place dibs.Place
			if err := place.UnmarshalText([]byte(text)); err != nil {
				log.Fatal(err)
			}
			lease, err := client.Redeem(ctx, place, nil)
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(message)
			if err := lease.Release(); err != nil {
				log.Fatal(err)
			}
		})
	}
	all.Wait()
	// Output:
	// hello
	// anybody there?
}

// A program that migrates in its own way prints the SQL.
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
