package mysqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/go-sql-driver/mysql"
	_ "github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/stores/mysqlstore"
)

// startMariaDB stands for the server that you have.
func startMariaDB() (url, dsn string) { return mysqlstore.NewDatabase() }

func Example() {
	url, _ := startMariaDB()
	ctx := context.Background()

	store, err := mysqlstore.Open(ctx, url, &mysqlstore.Options{Migrate: true})
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

// A program that has a configuration of the driver's gives it to New. The store makes
// connections of its own like those.
func ExampleNew() {
	_, dsn := startMariaDB()
	ctx := context.Background()

	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		log.Fatal(err)
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		log.Fatal(err)
	}
	db := sql.OpenDB(connector)
	defer db.Close()
	if err := mysqlstore.Migrate(ctx, db, &mysqlstore.Options{Prefix: "locks"}); err != nil {
		log.Fatal(err)
	}

	store, err := mysqlstore.New(ctx, config, &mysqlstore.Options{Prefix: "locks"})
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

// A program that migrates in its own way prints the SQL.
func ExampleMigrations() {
	all, err := mysqlstore.Migrations(&mysqlstore.Options{Prefix: "app"})
	if err != nil {
		log.Fatal(err)
	}
	for line := range strings.Lines(all[0].SQL) {
		if strings.HasPrefix(line, "CREATE TABLE") {
			fmt.Print(line)
		}
	}
	// Output:
	// CREATE TABLE IF NOT EXISTS `app_key` (
	// CREATE TABLE IF NOT EXISTS `app_holder` (
	// CREATE TABLE IF NOT EXISTS `app_waiter` (
	// CREATE TABLE IF NOT EXISTS `app_progress` (
	// CREATE TABLE IF NOT EXISTS `app_record` (
	// CREATE TABLE IF NOT EXISTS `app_meta` (
}

// open opens a pool, a store and a client as Example and ExampleNew do, and makes a table of the application.
func open(ctx context.Context, table string) (db *sql.DB, store *mysqlstore.Store, client *dibs.Client) {
	url, dsn := startMariaDB()
	db, err := sql.Open("mysql", dsn)
	if err == nil {
		_, err = db.ExecContext(ctx, "CREATE TABLE "+table)
	}
	if err == nil {
		store, err = mysqlstore.Open(ctx, url, &mysqlstore.Options{Migrate: true})
	}
	if err == nil {
		client, err = dibs.New(store, nil)
	}
	if err != nil {
		log.Fatal(err)
	}
	return db, store, client
}

// What is done in the transaction and the answer are committed together, so that it
// is done exactly once, whatever crashes when. A statement that fails takes the whole
// run back, and the next one runs.
func ExampleOnceTx() {
	ctx := context.Background()
	db, store, client := open(ctx, "seats (seat INT PRIMARY KEY, guest VARCHAR(100) NOT NULL)")
	defer db.Close()
	defer store.Close()
	defer client.Close()
	transactions := store.Transactions(db, nil)

	guests := []any{nil, "Ada", "Grace"}
	for _, guest := range guests {
		seat, err := mysqlstore.OnceTx(ctx, client, transactions, "booking 7", nil,
			func(ctx context.Context, tx *sql.Tx) (string, error) {
				_, err := tx.ExecContext(ctx, "INSERT INTO seats VALUES (12, ?)", guest)
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

// A handler behind the middleware writes in the transaction of its request.
func ExampleStore_Transactions() {
	ctx := context.Background()
	db, store, client := open(ctx, "charges (id INT AUTO_INCREMENT PRIMARY KEY, amount INT NOT NULL)")
	defer db.Close()
	defer store.Close()
	defer client.Close()

	once, err := idempotency.New(client, &idempotency.Options{Transactor: store.Transactions(db, nil)})
	if err != nil {
		log.Fatal(err)
	}
	charge := once.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx, ok := mysqlstore.Tx(r.Context())
		if !ok {
			http.Error(w, "no transaction", http.StatusInternalServerError)
			return
		}
		amount, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		result, err := tx.ExecContext(r.Context(), "INSERT INTO charges (amount) VALUES (?)", string(amount))
		if err != nil {
			http.Error(w, "no such charge", http.StatusUnprocessableEntity)
			return
		}
		id, err := result.LastInsertId()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "charge %d", id)
	}))

	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/charges", strings.NewReader("700"))
		r.Header.Set("Idempotency-Key", `"order-17"`)
		w := httptest.NewRecorder()
		charge.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body)
	}
	var n int
	if err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM charges").Scan(&n); err != nil {
		log.Fatal(err)
	}
	fmt.Println("charges:", n)
	// Output:
	// 201 charge 1
	// 201 charge 1
	// charges: 1
}
