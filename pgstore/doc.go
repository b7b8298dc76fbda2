// Package pgstore keeps leases, queues and records in a PostgreSQL database: the
// store for those who have one, and the one whose answers can commit together with
// what they are about.
//
//	store, err := pgstore.Open(ctx, "postgres://app@db.internal/app", &pgstore.Options{Migrate: true})
//
// New makes a Store with what a pgx pool was made with.
//
// Each verb is one function in the database and one statement, whatever it finds:
// it looks the record up, takes the lease and joins the queue, or ends the lease,
// writes the record and grants the next waiter. Many elements are one statement and
// one commit. No session keeps anything, so a transaction pooler may be in between.
//
// # A key
//
// What ends by itself as time passes is put down by whoever asks next.
//
//	         Claim                     Settle Release, Keep
//	free ───────────▶ held ───────────────────────────────▶ free, or granted
//	                  ▲  │                                  to the next place
//	queued ── turn ───┘  │
//	  │      told, or    │ the lease runs out, or Settle Abandon
//	  │      asks in     ▼
//	  │      dibs.Turn  abandoned: the next is granted as attempt n+1
//	  ▼                 unknown (AtMostOnce): nobody is, until Evict, Forget
//	gone, when its      or Resolve
//	Place runs out
//
// A key is a row, whose lock orders those who want something of it. A claim of a key
// that nobody is at writes that row, its end writes it again, and whoever is merely
// told that it is held, or what the answer is, writes nothing. Who waits, and what
// else there is to know, is in tables beside it. See sql/001_schema.sql.
//
// The function that frees a key notifies the process of the next waiter (NOTIFY),
// if that listens: its connection has an advisory lock, so that the dead are passed
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
// Places are reserved in a transaction with Store.Reserver, for jobs that it inserts.
// Until it commits they are rows of a table that nobody else sees, and a trigger takes
// them as it does: nothing of a key is locked before.
//
// # Time and fences
//
// Everything ends by the server's clock (clock_timestamp). A fence is the key's last
// one plus 1, or that clock in microseconds if it is higher. The row of a key that
// is not in use any more is forgotten after a minute, and of all that were forgotten
// the highest fence is kept, so that fences rise also when the clock was set back.
package pgstore
