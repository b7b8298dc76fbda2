package store

import (
	"context"
	"errors"
)

// ErrRolledBack says that a transaction was rolled back instead of committed, so that
// nothing in it was done.
var ErrRolledBack = errors.New("dibs: the transaction was rolled back")

// ErrTransactionEnded says that the code that ran in a transaction has ended it before the
// commit. Its writes may be committed, but there is no record, so the next caller runs
// again.
var ErrTransactionEnded = errors.New("dibs: the run has ended its transaction itself")

// Transactor begins transactions in the database that has both the application's tables and
// the keys, so that the work under a key and the key's record are committed together. Stores
// that can do that make one; see their Transactions.
//
//	claim ── granted ── begin ── the application's statements ── settle ── commit
//	(by the store's own connections)          (all in one transaction)
//
// A crash at any moment leaves both or neither. Before the commit the database rolls back
// and the lease expires. After the commit the record answers later claims. Only claims of
// the same key wait for the transaction, as with any lease.
type Transactor interface {
	// Begin begins a transaction. It is rolled back when ctx ends.
	Begin(ctx context.Context) (Transaction, error)
}

// Transaction is a transaction that has begun. Only one goroutine may use it at a time.
type Transaction interface {
	// Commit settles a key as the transaction's last statement, as Store.Settle does, and
	// commits. It returns ErrLost if the token does not hold the key, even if the token has
	// left a record there. If it failed for another known reason, it returns an error that
	// wraps ErrRolledBack. In both cases everything is rolled back. After any other error both
	// happened or neither did. Commit does not keep the settlement's data.
	Commit(ctx context.Context, s Settlement) error

	// Rollback rolls back. It does nothing if the transaction has ended.
	Rollback()

	// Conflicted reports whether the database ended the transaction because it conflicted
	// with another one (a serialization failure, a deadlock), so that all of it may be run
	// again. err is what the application or Commit returned. With nil, Conflicted reports
	// what the transaction noticed itself.
	Conflicted(err error) bool
}

type transactionKey struct{}

// WithTransaction returns a context that carries the transaction, for the code that writes
// in it. That code gets it with the function that the transaction's store has for that.
func WithTransaction(ctx context.Context, tx Transaction) context.Context {
	return context.WithValue(ctx, transactionKey{}, tx)
}

// TransactionFrom returns the transaction that ctx carries, or nil.
func TransactionFrom(ctx context.Context) Transaction {
	tx, _ := ctx.Value(transactionKey{}).(Transaction)
	return tx
}

// Reserver reserves places in a database transaction. The store whose tables are in that
// database makes it.
type Reserver interface {
	// Reserve takes the places that these claims of mode Reserve ask for, in their order.
	// The places exist if and when the transaction commits, behind all places that were
	// taken before.
	Reserve(ctx context.Context, claims []Claim) error
}

// Holder holds leases in a database transaction. The store whose tables are in that database
// makes it.
type Holder interface {
	// Hold returns nil if the token holds the key, and ErrLost if it does not. After nil no
	// other token is granted the key before the transaction has ended, even if the lease expires
	// meanwhile. Renewals of the lease go on.
	Hold(ctx context.Context, key Key, token Token) error
}
