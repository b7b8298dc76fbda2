package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqllock"
)

// postgresURL and mariaDBName say where the servers are that you have.
func postgresURL() string { return sqllock.SharedPostgres() }

func mariaDBName() string { return sqllock.SharedMariaDB() }

func ExampleAdvisory() {
	url := postgresURL()
	ctx := context.Background()

	db, err := sql.Open("pgx", url)
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	locks, err := sqllock.NewAdvisory(ctx, db, nil)
	if err != nil {
		log.Fatal(err)
	}

	key := sqllock.NameKey("shop", "nightly report")
	err = locks.Do(ctx, key, nil, func(ctx context.Context) error {
		fmt.Println("one at a time, on all hosts, until ctx ends")

		err := locks.TryDo(ctx, key, nil, func(context.Context) error { return nil })
		fmt.Println("held:", errors.Is(err, dibs.ErrHeld))

		_, err = locks.Lock(ctx, key, &sqllock.LockOptions{Wait: 50 * time.Millisecond})
		fmt.Println("held, after a wait:", errors.Is(err, dibs.ErrHeld))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	held, err := locks.Held(ctx, key)
	fmt.Println("held afterwards:", held, err)
	// Output:
	// one at a time, on all hosts, until ctx ends
	// held: true
	// held, after a wait: true
	// held afterwards: false <nil>
}

// The lock ends with the transaction. Behind a pooler this is the one to take.
func ExampleLockTx() {
	url := postgresURL()
	ctx := context.Background()

	db, err := sql.Open("pgx", url)
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	one, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer one.Rollback()
	two, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer two.Rollback()

	key := sqllock.NameKey("shop", "stock of 7")
	if err := sqllock.LockTx(ctx, one, key, nil); err != nil {
		log.Fatal(err)
	}
	err = sqllock.LockTx(ctx, two, key, &sqllock.LockTxOptions{Wait: 50 * time.Millisecond})
	fmt.Println("held:", errors.Is(err, dibs.ErrHeld))
	if err := one.Commit(); err != nil {
		log.Fatal(err)
	}
	// The transaction that did not get it continues.
	fmt.Println(sqllock.LockTx(ctx, two, key, nil))
	// Output:
	// held: true
	// <nil>
}

// The numbers that Ruby's with_advisory_lock(:create_order) locks.
func ExampleRubyKey() {
	fmt.Println(sqllock.RubyKey("", "create_order"))
	// Output: 1103555577, 0
}

func ExampleNamed() {
	ctx := context.Background()

	db, err := sql.Open("mysql", mariaDBName())
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	locks, err := sqllock.NewNamed(ctx, db, nil)
	if err != nil {
		log.Fatal(err)
	}

	err = locks.Do(ctx, "nightly report", nil, func(ctx context.Context) error {
		_, err := locks.Lock(ctx, "nightly report", &sqllock.LockOptions{Wait: 200 * time.Millisecond})
		fmt.Println("held:", errors.Is(err, dibs.ErrHeld))

		lock, err := locks.LockAll(ctx, []string{"Nightly Report", "account 8", "account 7"}, nil)
		if err != nil {
			return err
		}
		return lock.Unlock()
	})
	fmt.Println(err)
	// Output:
	// held: true
	// <nil>
}
