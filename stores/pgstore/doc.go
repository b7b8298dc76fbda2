// Package pgstore keeps leases, queues and records in a PostgreSQL database. Use it if several
// hosts share such a database, or if an answer must commit together with its effect.
//
//	store, err := pgstore.Open(ctx, "postgres://app@db.internal/app", &pgstore.Options{Migrate: true})
//
// New makes a Store with the settings of a pgx pool.
//
// Plain calls take one statement, however many elements they have: leases of keys with one
// permit, their queue, their end, a hand-over, replays. The other calls take one transaction of
// two round trips for all their elements: it locks and loads rows, package engine decides, and it
// writes the difference. Nothing is kept in a session, so a transaction pooler may be in between.
//
// # A key
//
// A key is a row, and the lock of this row orders the calls about the key. A claim of a free key
// writes the row, and its end writes it again. A claim that is answered with held, or with the
// record, writes nothing. Waiters, reserved places and abandoned leases are in tables beside it,
// and the row is marked busy. See sql/001_schema.sql. Rows that have expired are deleted by the
// next call about the key.
//
// The call that frees a key grants it to the next waiter and notifies the waiter's process
// (NOTIFY), if the grant is all that the waiter needs. Otherwise it wakes the waiter, which asks.
// The connection that listens holds an advisory lock, so that a waiter whose process is dead is
// passed over. A process listens from the first time that a client waits in it.
//
// # In a transaction
//
// OnceTx runs a function in a transaction of the application, and commits its effect together
// with its answer. Store.Transactions does the same for the HTTP middleware. The store
// recognizes the transaction by how it began, so it keeps no answer of another transaction.
//
//	claim ── BEGIN ── the application's statements ── settle, COMMIT
//	  │                                                   │
//	  by the store's connections            one message: without the settlement
//	                                        the server does not commit
//
// If clients wait for the key, the lease stays and is marked as settled. The waiters are woken
// when the transaction commits, and the next call about the key does the rest.
//
// Store.Holder holds a lease in a transaction, so that nobody else is granted the key before it has
// committed. Its lock on the row passes renewals.
//
// Store.Reserver reserves places in a transaction, for jobs that it inserts. Other transactions
// see the places once it commits.
//
// # Time and fences
//
// Everything expires by the server's clock (clock_timestamp). A fence is the key's last fence
// plus 1, or the clock in microseconds if that is higher. The row of a key that is not in use is
// deleted after a minute. The store keeps the highest fence of all deleted rows, so fences rise
// even if the clock was set back.
package pgstore
