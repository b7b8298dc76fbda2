package mysqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/dibs-go/dibs"
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
