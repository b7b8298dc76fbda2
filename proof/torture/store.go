package torture

import (
	"context"
	"database/sql"

	"github.com/dibs-go/dibs"
)

// Open opens the store that a URL names. The runner and every worker call it.
type Open func(ctx context.Context, url string) (*Store, error)

// Store is an open store with what a run needs of it.
type Store struct {
	dibs.Store
	// Close closes the store and what else was opened with it.
	Close func() error
	// Ledger is in the store's database; nil where there are no transactions with it.
	Ledger *Ledger
}

// Ledger is a table in the store's database, in which workers write down that
// something happened, in the transaction that also leaves the record of it.
type Ledger struct {
	// DB is the database, by connections that are not the store's.
	DB *sql.DB
	// Transactor begins transactions of DB.
	Transactor dibs.Transactor
	// Tx returns the transaction that the context carries, or why there is none.
	Tx func(context.Context) (*sql.Tx, error)
	// Schema, when not "", goes before the names of tables, quoted.
	Schema string
	// Dollar says that parameters are $1, $2 and not ?.
	Dollar bool
}

// table returns the full name of a run's table.
func (l *Ledger) table(run string) string {
	name := "dibs_torture_" + run
	if l.Schema != "" {
		return l.Schema + "." + name
	}
	return name
}

func (l *Ledger) make(ctx context.Context, run string) error {
	_, err := l.DB.ExecContext(ctx, "CREATE TABLE "+l.table(run)+" (name VARCHAR(200) NOT NULL, result VARCHAR(200) NOT NULL)")
	return err
}

func (l *Ledger) drop(ctx context.Context, run string) error {
	_, err := l.DB.ExecContext(ctx, "DROP TABLE IF EXISTS "+l.table(run))
	return err
}

// insert writes a row in the transaction that ctx carries.
func (l *Ledger) insert(ctx context.Context, run, name, result string) error {
	tx, err := l.Tx(ctx)
	if err != nil {
		return err
	}
	values := " (name, result) VALUES (?, ?)"
	if l.Dollar {
		values = " (name, result) VALUES ($1, $2)"
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO "+l.table(run)+values, name, result)
	return err
}

// row is what a committed transaction has left.
type row struct{ name, result string }

// rows returns all of a run.
func (l *Ledger) rows(ctx context.Context, run string) (all []row, err error) {
	rows, err := l.DB.QueryContext(ctx, "SELECT name, result FROM "+l.table(run))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r row
		if err := rows.Scan(&r.name, &r.result); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, rows.Err()
}
