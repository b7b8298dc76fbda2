// Package mysqlstore keeps leases, queues and records in a MySQL or MariaDB database:
// the store for several hosts that have one already.
//
//	store, err := mysqlstore.Open(ctx, "mysql://app@db.internal/app", &mysqlstore.Options{Migrate: true})
//
// New makes a Store with a configuration of the driver's.
//
// A batch of claims, renewals or settlements is one transaction. Of plain leases
// (one permit, nobody waits, nothing was abandoned) it is one round trip too: rows are
// taken by one INSERT that leaves alone what is not free, and given back by one UPDATE.
// What is not plain is loaded with its row locked, worked on in memory, and what is
// different then is written.
//
// # A key
//
// What ends by itself as time passes is put down by whoever asks next.
//
//	         Claim                     Settle Release, Keep
//	free ───────────▶ held ───────────────────────────────▶ free, or granted
//	                  ▲  │                                  to the waiter in front
//	queued ── turn ───┘  │
//	  │      told, or    │ the lease runs out, or Settle Abandon
//	  │      asks        ▼
//	  │                 abandoned: the next is granted as attempt n+1
//	  ▼                 unknown (AtMostOnce): nobody is, until ForceRelease, Forget
//	gone, when its      or Resolve
//	Stay is over
//
// A key is a row, whose lock orders those who want something of it. Rows are locked in
// the order of their keys, at READ COMMITTED and by the primary key alone, so that
// there are hardly any deadlocks; those there are all the same are tried again. Who
// waits, and what else there is to know, is in tables beside it, which only those
// change who have the key's row. See sql/001_schema.sql.
//
// # Waiting
//
// The server tells nobody anything. So while somebody waits in a process, that looks at
// the keys of all of them at once, every 1 to 8 ms: who was granted is told its grant, and
// who would be granted or answered is woken to ask. What happens within a process is
// known there at once.
//
// # Transactions
//
// A key can be settled in a transaction of the application's (see Transactions and
// OnceTx): with the statements that end the lease and write the record, and that are
// certain of the transaction, by a savepoint, and of the lease. Where there is more to
// know of the key, the lease stays, as one that was settled; the rest is seen to when it
// is committed, or by whoever next works on the key if the process ends in between.
//
// # Time and fences
//
// Everything ends by the server's clock, read by a statement that begins when the locks
// are had. A fence is the key's last one plus 1, or that clock in microseconds if it is
// higher. The row of a key that is not in use any more is forgotten after a minute, and
// a mark is kept that is above the fences of all that were forgotten, so that fences
// rise also when the clock was set back.
package mysqlstore
