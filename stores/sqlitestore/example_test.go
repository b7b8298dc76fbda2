package sqlitestore_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/stores/sqlitestore"
)

func Example() {
	folder, err := os.MkdirTemp("", "dibs")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)

	store, err := sqlitestore.Open(filepath.Join(folder, "dibs.db"), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	client, err := dibs.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	err = client.Do(context.Background(), "invoice 7", func(ctx context.Context) error {
		fmt.Println("one process at a time")
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: one process at a time
}

// What is booked and the answer are committed together, so that a payment that is
// asked for again is booked once, whatever crashed when.
func ExampleOnceTx() {
	folder, err := os.MkdirTemp("", "dibs")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)

	// The application's own file, which has the keys too.
	store, err := sqlitestore.Open(filepath.Join(folder, "app.db"), &sqlitestore.Options{Shared: true})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	db, err := store.OpenDB()
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	client, err := dibs.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	ctx := context.Background()
	if _, err := db.ExecContext(ctx, "CREATE TABLE ledger (account INTEGER, amount INTEGER)"); err != nil {
		log.Fatal(err)
	}
	transactions := store.Transactions(db)
	for range 3 {
		answer, err := sqlitestore.OnceTx(ctx, client, transactions, "payment 7", nil,
			func(ctx context.Context, tx *sql.Tx) (string, error) {
				_, err := tx.ExecContext(ctx, "INSERT INTO ledger VALUES (12, 990)")
				return "990 booked", err
			})
		fmt.Println(answer, err)
	}
	var rows int
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM ledger").Scan(&rows); err != nil {
		log.Fatal(err)
	}
	fmt.Println(rows, "row")
	// Output:
	// 990 booked <nil>
	// 990 booked <nil>
	// 990 booked <nil>
	// 1 row
}
