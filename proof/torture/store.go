package torture

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/stores/anystore"
)

// Open opens the store that a URL names. The runner and every worker call it.
type Open func(ctx context.Context, url string) (*Store, error)

// Store is an open store.
type Store struct {
	Store dibs.Store
	// Locker is what the workers use in the place of a dibs.Client, if it is not nil. Then Store
	// is nil, and only the sections are checked.
	Locker Locker
	// Close closes the store, and its database if it has one.
	Close func() error

	effects *effects // nil if applications cannot have transactions with the keys
}

// OpenStore opens a store as the program dibs does.
// It returns anystore.ErrURL for a store in memory, because processes cannot share one, and
// otherwise the errors of anystore.Open.
func OpenStore(ctx context.Context, url string) (*Store, error) {
	if strings.HasPrefix(url, "memory:") {
		return nil, fmt.Errorf("%w: worker processes cannot share a store in memory; name another one", anystore.ErrURL)
	}
	s, err := anystore.Open(ctx, url, anystore.ToUse)
	if err != nil {
		return nil, err
	}
	db, err := s.Database()
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	opened := &Store{Store: s.Store, Close: s.Close}
	if db != nil {
		opened.effects = &effects{db}
		opened.Close = func() error {
			_ = db.DB.Close() // an error here is about an idle connection that a fault broke
			return s.Close()
		}
	}
	return opened, nil
}

// effects is a table in the store's database. A worker writes an effect there in the
// transaction that also writes the record of it.
type effects struct{ *anystore.Database }

// table returns the full name of a run's table.
func (d *effects) table(run string) string {
	name := "dibs_torture_" + run
	if d.Schema != "" {
		return d.Schema + "." + name
	}
	return name
}

func (d *effects) make(ctx context.Context, run string) error {
	_, err := d.DB.ExecContext(ctx, "CREATE TABLE "+d.table(run)+" (name VARCHAR(200) NOT NULL, result VARCHAR(200) NOT NULL)")
	if err != nil {
		return fmt.Errorf("%w: the table for effects cannot be made; the user needs the right CREATE: %w", anystore.ErrUnusable, err)
	}
	return nil
}

func (d *effects) drop(ctx context.Context, run string) error {
	_, err := d.DB.ExecContext(ctx, "DROP TABLE IF EXISTS "+d.table(run))
	return err
}

// insert writes an effect in the transaction that ctx carries.
func (d *effects) insert(ctx context.Context, run, name, result string) error {
	tx, err := d.Tx(ctx)
	if err != nil {
		return err
	}
	values := " (name, result) VALUES (?, ?)"
	if d.Dollar {
		values = " (name, result) VALUES ($1, $2)"
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO "+d.table(run)+values, name, result)
	return err
}

// effect is a row that a committed transaction has left.
type effect struct{ name, result string }

// list returns all effects of a run.
func (d *effects) list(ctx context.Context, run string) (all []effect, err error) {
	rows, err := d.DB.QueryContext(ctx, "SELECT name, result FROM "+d.table(run))
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
