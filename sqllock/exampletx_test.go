package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqllock"
)

// openSQLite stands for the database that you have.
func openSQLite(schema string) (db *sql.DB, stop func()) {
	dir, err := os.MkdirTemp("", "sqllock-example-")
	if err != nil {
		log.Fatal(err)
	}
	db, err = sql.Open("sqlite", "file:"+filepath.Join(dir, "app.db")+"?_pragma=busy_timeout(5000)")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := db.Exec(schema); err != nil {
		log.Fatal(err)
	}
	return db, func() {
		db.Close()
		os.RemoveAll(dir)
	}
}

const accounts = `CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, version INTEGER NOT NULL);
	INSERT INTO account VALUES (1, 100, 1), (2, 100, 1)`

type Account struct{ ID, Balance, Version int64 }

func ExampleRow_Update() {
	db, stop := openSQLite(accounts)
	defer stop()
	ctx := context.Background()

	account, err := sqllock.NewRow(sqllock.SQLite, &sqllock.RowOptions[Account]{
		Select: "SELECT id, balance FROM account WHERE id = ?",
		Fields: func(a *Account) []any { return []any{&a.ID, &a.Balance} },
		Update: "UPDATE account SET balance = ? WHERE id = ?",
		Values: func(a *Account) []any { return []any{a.Balance, a.ID} },
	})
	if err != nil {
		log.Fatal(err)
	}

	// No other transaction changes the row between the read and the write.
	errPoor := errors.New("the balance is too low")
	withdraw := func(amount int64) (Account, error) {
		return account.Update(ctx, db, func(_ context.Context, _ *sql.Tx, a *Account) error {
			if a.Balance < amount {
				return errPoor
			}
			a.Balance -= amount
			return nil
		}, 1)
	}
	a, err := withdraw(70)
	fmt.Println(a.Balance, err)
	_, err = withdraw(70)
	fmt.Println(err)
	// Output:
	// 30 <nil>
	// the balance is too low
}

func ExampleRow_UpdateOptimistic() {
	db, stop := openSQLite(accounts)
	defer stop()
	ctx := context.Background()

	account, err := sqllock.NewRow(sqllock.SQLite, &sqllock.RowOptions[Account]{
		Select: "SELECT id, balance, version FROM account WHERE id = ?",
		Fields: func(a *Account) []any { return []any{&a.ID, &a.Balance, &a.Version} },
		Update: "UPDATE account SET balance = ?, version = version + 1 WHERE id = ? AND version = ?",
		Values: func(a *Account) []any { return []any{a.Balance, a.ID, a.Version} },
	})
	if err != nil {
		log.Fatal(err)
	}

	runs := 0
	a, err := account.UpdateOptimistic(ctx, db, func(_ context.Context, a *Account) error {
		if runs++; runs == 1 { // another writer is faster
			if _, err := db.Exec("UPDATE account SET balance = balance + 5, version = version + 1 WHERE id = 1"); err != nil {
				return err
			}
		}
		a.Balance *= 2
		return nil
	}, 1)
	fmt.Println(a.Balance, runs, err)
	// Output: 210 2 <nil>
}

// Two people have the same form open.
func ExampleRow_Save() {
	db, stop := openSQLite(accounts)
	defer stop()
	ctx := context.Background()

	account, err := sqllock.NewRow(sqllock.SQLite, &sqllock.RowOptions[Account]{
		Select: "SELECT id, balance, version FROM account WHERE id = ?",
		Fields: func(a *Account) []any { return []any{&a.ID, &a.Balance, &a.Version} },
		Update: "UPDATE account SET balance = ?, version = version + 1 WHERE id = ? AND version = ?",
		Values: func(a *Account) []any { return []any{a.Balance, a.ID, a.Version} },
	})
	if err != nil {
		log.Fatal(err)
	}

	first, second := Account{ID: 1, Balance: 150, Version: 1}, Account{ID: 1, Balance: 50, Version: 1}
	fmt.Println(account.Save(ctx, db, &first))
	fmt.Println(errors.Is(account.Save(ctx, db, &second), sqllock.ErrConflict))
	// Output:
	// <nil>
	// true
}

// Money goes from one account to the other. The same in the other direction, at the
// same time, locks the two rows in the same order.
func ExampleLockRows() {
	db, stop := openSQLite(accounts)
	defer stop()

	transfer := func(from, to, amount int64) error {
		return sqllock.Transact(context.Background(), sqllock.SQLite, db, nil, func(ctx context.Context, tx *sql.Tx) error {
			if _, err := sqllock.LockRows(ctx, sqllock.SQLite, tx, nil, "account", "id", from, to); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, "UPDATE account SET balance = balance - ? WHERE id = ?", amount, from); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, "UPDATE account SET balance = balance + ? WHERE id = ?", amount, to)
			return err
		})
	}
	fmt.Println(transfer(2, 1, 30))
	fmt.Println(transfer(1, 3, 30))
	// Output:
	// <nil>
	// sqllock: the table account has no rows 3
}

func ExampleSequence() {
	db, stop := openSQLite("CREATE TABLE invoice (number INTEGER PRIMARY KEY, customer TEXT)")
	defer stop()
	ctx := context.Background()

	numbers, err := sqllock.NewSequence(sqllock.SQLite, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := numbers.Migrate(ctx, db); err != nil {
		log.Fatal(err)
	}

	invoice := func(customer string) error {
		return sqllock.Transact(ctx, sqllock.SQLite, db, nil, func(ctx context.Context, tx *sql.Tx) error {
			n, err := numbers.Next(ctx, tx, "invoice 2026")
			if err != nil {
				return err
			}
			if customer == "" {
				return fmt.Errorf("number %d goes back: no customer", n)
			}
			fmt.Println(n, customer)
			_, err = tx.ExecContext(ctx, "INSERT INTO invoice (number, customer) VALUES (?, ?)", n, customer)
			return err
		})
	}
	for _, customer := range []string{"Ada", "", "Grace"} {
		if err := invoice(customer); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// 1 Ada
	// number 2 goes back: no customer
	// 2 Grace
}

// A row keeps its number however often the event fires that numbers it.
func ExampleSequence_row() {
	db, stop := openSQLite("CREATE TABLE invoice (id INTEGER PRIMARY KEY, number INTEGER UNIQUE); INSERT INTO invoice (id) VALUES (7), (8)")
	defer stop()
	ctx := context.Background()

	numbers, err := sqllock.NewSequence(sqllock.SQLite, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := numbers.Migrate(ctx, db); err != nil {
		log.Fatal(err)
	}
	type invoice struct {
		id     int64
		number sql.NullInt64
	}
	rows, err := sqllock.NewRow(sqllock.SQLite, &sqllock.RowOptions[invoice]{
		Select: "SELECT id, number FROM invoice WHERE id = ?",
		Fields: func(i *invoice) []any { return []any{&i.id, &i.number} },
		Update: "UPDATE invoice SET number = ? WHERE id = ?",
		Values: func(i *invoice) []any { return []any{i.number, i.id} },
	})
	if err != nil {
		log.Fatal(err)
	}

	paid := func(ctx context.Context, tx *sql.Tx, i *invoice) (err error) {
		if !i.number.Valid { // the row is locked: no other event numbers it now
			i.number.Int64, err = numbers.Next(ctx, tx, "invoice 2026")
			i.number.Valid = true
		}
		return err
	}
	for _, id := range []int64{8, 7, 8, 7, 8} {
		i, err := rows.Update(ctx, db, paid, id)
		fmt.Println("invoice", i.id, "has number", i.number.Int64, err)
	}
	// Output:
	// invoice 8 has number 1 <nil>
	// invoice 7 has number 2 <nil>
	// invoice 8 has number 1 <nil>
	// invoice 7 has number 2 <nil>
	// invoice 8 has number 1 <nil>
}

// Taking a thousand numbers costs as much as taking one.
func ExampleSequence_NextN() {
	db, stop := openSQLite("")
	defer stop()
	ctx := context.Background()

	numbers, err := sqllock.NewSequence(sqllock.SQLite, &sqllock.SequenceOptions{Start: 10_000})
	if err != nil {
		log.Fatal(err)
	}
	if err := numbers.Migrate(ctx, db); err != nil {
		log.Fatal(err)
	}
	for range 2 {
		err := sqllock.Transact(ctx, sqllock.SQLite, db, nil, func(ctx context.Context, tx *sql.Tx) error {
			first, err := numbers.NextN(ctx, tx, "invoice 2026", 1000)
			fmt.Println(first, "to", first+999)
			return err
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// 10000 to 10999
	// 11000 to 11999
}

// PostgreSQL takes the number in the statement that uses it.
func ExampleSequence_CTE() {
	numbers, err := sqllock.NewSequence(sqllock.PostgreSQL, nil)
	if err != nil {
		log.Fatal(err)
	}
	number, err := numbers.CTE("$1", "")
	if err != nil {
		log.Fatal(err)
	}
	query := "WITH " + number + " INSERT INTO invoice (number, customer) SELECT last, $2 FROM number RETURNING number"
	fmt.Println(query[:53], "…", query[strings.LastIndex(query, ") INSERT"):])
	// Output:
	// WITH number AS (INSERT INTO "dibs_sequence" AS s (sco … ) INSERT INTO invoice (number, customer) SELECT last, $2 FROM number RETURNING number
}

// A holder that does not know yet that its lease is over gets an error of the database that
// it writes to.
func ExampleFenceCheck() {
	db, stop := openSQLite("CREATE TABLE ledger (entry TEXT)")
	defer stop()
	ctx := context.Background()

	check, err := sqllock.NewFenceCheck(sqllock.SQLite, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := check.Migrate(ctx, db); err != nil {
		log.Fatal(err)
	}
	write := func(fence uint64, entry string) error {
		return sqllock.Transact(ctx, sqllock.SQLite, db, nil, func(ctx context.Context, tx *sql.Tx) error {
			if err := check.Admit(ctx, tx, "ledger", fence); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, "INSERT INTO ledger VALUES (?)", entry)
			return err
		})
	}

	// What lease.Fence() was for two holders of a key, one after the other.
	const first, second = 1_795_000_000_000_000, 1_795_000_012_000_000
	fmt.Println(write(second, "the second holder"))
	err = write(first, "the first one, late")
	fmt.Println(errors.Is(err, dibs.ErrLost), errors.Is(err, sqllock.ErrOvertaken))
	// Output:
	// <nil>
	// true true
}

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
