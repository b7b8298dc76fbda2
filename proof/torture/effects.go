package torture

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/anystore"
	"github.com/dibs-go/dibs/stores/mysqlstore"
	"github.com/dibs-go/dibs/stores/pgstore"
	"github.com/dibs-go/dibs/stores/sqlitestore"
)

// effects is a table in the store's database. A worker writes an effect there in the
// transaction that also writes the record of it.
type effects struct {
	db         *sql.DB // beside the store's connections
	transactor dibs.Transactor
	tx         func(context.Context) (*sql.Tx, error)
	schema     string // of the store's tables, in quotes; "" is the connection's default
	values     string // the parameters of two values
}

// openEffects opens the database of a store, or returns nil if applications cannot have transactions
// with its keys.
func openEffects(url string, s store.Store) (*effects, error) {
	e := &effects{values: "(?, ?)"}
	switch s := s.(type) {
	case *pgstore.Store:
		config, o, err := pgstore.Parse(url, nil)
		if err != nil {
			return nil, err
		}
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // prepares nothing, because a pooler may be in between
		e.db, e.values, e.tx = stdlib.OpenDB(*config.ConnConfig), "($1, $2)", orError(pgstore.SQLTx)
		if o.Schema != "" {
			e.schema = `"` + o.Schema + `"`
		}
		e.transactor = s.SQLTransactions(e.db, nil)
	case *mysqlstore.Store:
		config, _, err := mysqlstore.ParseURL(url, nil)
		if err != nil {
			return nil, err
		}
		config.Timeout = 5 * time.Second // to connect
		connector, err := mysql.NewConnector(config)
		if err != nil {
			return nil, err
		}
		e.db, e.tx = sql.OpenDB(connector), orError(mysqlstore.Tx)
		e.transactor = s.Transactions(e.db, nil)
	case *sqlitestore.Store:
		if !strings.Contains(url, "shared=true") {
			return nil, nil
		}
		db, err := s.OpenDB()
		if err != nil {
			return nil, err
		}
		e.db, e.tx, e.transactor = db, sqlitestore.Begin, s.Transactions(db)
	default:
		return nil, nil
	}
	e.db.SetMaxOpenConns(effectConns)
	return e, nil
}

// orError turns the bool that a store's Tx returns into an error.
func orError(tx func(context.Context) (*sql.Tx, bool)) func(context.Context) (*sql.Tx, error) {
	return func(ctx context.Context) (*sql.Tx, error) {
		t, ok := tx(ctx)
		if !ok {
			return nil, errors.New("the context carries no transaction of this store")
		}
		return t, nil
	}
}

// effectConns is how many connections effects opens at most.
const effectConns = 8

// table returns the full name of a run's table.
func (d *effects) table(run string) string {
	name := "dibs_torture_" + run
	if d.schema != "" {
		return d.schema + "." + name
	}
	return name
}

func (d *effects) make(ctx context.Context, run string) error {
	_, err := d.db.ExecContext(ctx, "CREATE TABLE "+d.table(run)+" (name VARCHAR(200) NOT NULL, result VARCHAR(200) NOT NULL)")
	if err != nil {
		return fmt.Errorf("%w: the table for effects cannot be made; the user needs the right CREATE: %w", anystore.ErrUnusable, err)
	}
	return nil
}

func (d *effects) drop(ctx context.Context, run string) error {
	_, err := d.db.ExecContext(ctx, "DROP TABLE IF EXISTS "+d.table(run))
	return err
}

// insert writes an effect in the transaction that ctx carries.
func (d *effects) insert(ctx context.Context, run, name, result string) error {
	tx, err := d.tx(ctx)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO "+d.table(run)+" (name, result) VALUES "+d.values, name, result)
	return err
}

// effect is a row that a committed transaction has left.
type effect struct{ name, result string }

// list returns all effects of a run.
func (d *effects) list(ctx context.Context, run string) (all []effect, err error) {
	rows, err := d.db.QueryContext(ctx, "SELECT name, result FROM "+d.table(run))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var e effect
		if err := rows.Scan(&e.name, &e.result); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, rows.Err()
}
