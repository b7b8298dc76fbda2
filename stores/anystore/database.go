package anystore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/dibs-go/dibs"
)

// databaseConns is how many connections a Database opens at most.
const databaseConns = 8

// Database is the SQL database that a store keeps its keys in, as an application uses it:
// through connections of its own, with transactions that carry a key's record.
type Database struct {
	// DB is the database. Its connections are not the store's.
	DB *sql.DB
	// Transactor begins transactions of DB for Client.OnceIn and Lease.CompleteIn.
	Transactor dibs.Transactor
	// Tx returns the transaction that the context carries, or an error if it carries none.
	Tx func(context.Context) (*sql.Tx, error)
	// Schema is the schema of the store's tables, in quotes; "" is the connection's default.
	Schema string
	// Dollar says that parameters are written $1, $2 instead of ?.
	Dollar bool
}

// Database opens the store's database, or returns nil if applications cannot have
// transactions with the keys: in memory, in Redis, and in a file without shared=true. The
// caller closes its DB, before it closes the store.
func (s *Store) Database() (*Database, error) {
	if s.database == nil {
		return nil, nil
	}
	d, err := s.database()
	if err != nil {
		return nil, errors.Join(ErrUnusable, err)
	}
	d.DB.SetMaxOpenConns(databaseConns)
	return d, nil
}

// errNoTransaction says that a function of Database.Tx was given another's context.
var errNoTransaction = errors.New("stores: the context carries no transaction of this store")

// orError turns the bool that a store's Tx returns into an error.
func orError(tx func(context.Context) (*sql.Tx, bool)) func(context.Context) (*sql.Tx, error) {
	return func(ctx context.Context) (*sql.Tx, error) {
		t, ok := tx(ctx)
		if !ok {
			return nil, errNoTransaction
		}
		return t, nil
	}
}
