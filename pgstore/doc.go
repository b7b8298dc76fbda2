// Package pgstore keeps leases, queues and records in a PostgreSQL database: the
// store for those who have one, and the one whose answers can commit together with
// what they are about.
//
//	store, err := pgstore.Open(ctx, "postgres://app@db.internal/app", &pgstore.Options{Migrate: true})
//
// New makes a Store with what a pgx pool was made with.
//
// What is plain is one function in the database and one statement, however many elements
// a call has: leases of keys with one permit, their queue, their end, a hand-over, records.
// What is not takes one transaction in two round trips, for all elements of a call: their
// rows are locked and loaded, internal/engine decides, and the difference is written. No
// session keeps anything, so a transaction pooler may be in between.
//
// # A key
//
// A key is a row, whose lock orders those who want something of it. A claim of a key
// that nobody is at writes that row, its end writes it again, and whoever is merely
// told that it is held, or what the answer is, writes nothing. Who waits, and what
// else there is to know, is in tables beside it, and the row says that it is busy. See
// sql/001_schema.sql. What ends by itself as time passes is put down by whoever asks next.
//
// Whoever frees a key grants it to the next waiter, if the grant is all that there is to
// tell, and notifies its process (NOTIFY); otherwise the waiter is told to ask. The
// connection that listens has an advisory lock, so that waiters of the dead are passed
// over. A process listens when somebody in it waits first.
//
// # In a transaction
//
// OnceTx runs a function in a transaction of the application and commits what it did
// together with its answer; Store.Transactions is what the HTTP middleware wants for
// that. The transaction can be told from others by how it begins, and the function
// that settles looks at that, so that no answer is kept of any other.
//
//	claim ── BEGIN ── the application's statements ── settle, COMMIT
//	  │                                                   │
//	  by the store's connections            one message: without the settlement
//	                                        the server does not commit
//
// Of a key for which somebody waits the lease stays, as one that was settled, until whoever
// works on the key next sees to it: those who wait are told to ask when it commits.
//
// Places are reserved in a transaction with Store.Reserver, for jobs that it inserts: rows
// among the places, which nobody sees before it commits.
//
// # Time and fences
//
// Everything ends by the server's clock (clock_timestamp). A fence is the key's last
// one plus 1, or that clock in microseconds if it is higher. The row of a key that
// is not in use any more is forgotten after a minute, and of all that were forgotten
// the highest fence is kept, so that fences rise also when the clock was set back.
package pgstore
