package dibs

import "github.com/dibs-go/dibs/store"

// What a caller names of the contract of the stores.
type (
	// Store keeps leases, places and records. Package store has the contract.
	Store = store.Store
	// Key names one thing to call dibs on.
	Key = store.Key
	// Fingerprint is a digest of what was asked under a key.
	Fingerprint = store.Fingerprint
	// Record is what a finished holder left behind.
	Record = store.Record
	// Transactor begins transactions that commit a key's record together with the
	// application's rows.
	Transactor = store.Transactor
	// Transaction is one that has begun.
	Transaction = store.Transaction
	// Reserver reserves places in a transaction.
	Reserver = store.Reserver
	// Holder holds leases in a transaction.
	Holder = store.Holder
)

// AnyAge, as a MaxAge, accepts every record that is still kept.
const AnyAge = store.AnyAge
