// Package mysqlstore keeps leases, queues and records in a MySQL or MariaDB database that several
// hosts share.
//
//	store, err := mysqlstore.Open(ctx, "mysql://app@db.internal/app", &mysqlstore.Options{Migrate: true})
//
// New makes a Store with a configuration of the driver.
//
// Plain calls take one round trip for all their elements: keys with one permit, without waiters
// or abandoned leases. One INSERT takes the free keys, and one UPDATE ends leases. The other calls
// take one transaction of two more round trips: it locks and loads rows, package engine decides,
// and it writes the difference.
//
// # A key
//
// What has expired is ended by the next call about the key.
//
//	         Claim                     Settle Release, Keep
//	free ───────────▶ held ───────────────────────────────▶ free, or granted
//	                  ▲  │                                  to the waiter in front
//	waiting ─ turn ───┘  │
//	  │     pushed, or   │ the lease expires, or Settle Abandon
//	  │     it asks      ▼
//	  │                 abandoned: the next grant is attempt n+1
//	  ▼                 unknown (AtMostOnce): no grant until ForceRelease,
//	no place, when its  Forget or Resolve
//	PlaceTTL is over
//
// A key is a row, and the lock of this row orders the calls about the key. Rows are locked in the
// order of their keys, at READ COMMITTED and by the primary key alone, so that deadlocks are rare;
// a call that meets one is made again. Waiters, reserved places and abandoned leases are in tables
// beside it. Only a transaction that has locked the key's row changes them. See
// sql/001_schema.sql.
//
// # Waiting
//
// The server notifies no client. While clients wait in a process, the store polls the keys of all
// of them with one query, every 1 to 8 ms: it passes on grants, and wakes waiters whose answer has
// changed. Calls of the same process wake waiters at once.
//
// # Transactions
//
// A key can be settled in a transaction of the application (see Transactions and OnceTx). The
// statements end the lease, write the record, and check the lease and the transaction, which has a
// savepoint. If other tables have rows of the key, the lease stays and is marked as settled. The
// store does the rest after the commit, or the next call about the key does if the process ends.
//
// # Time and fences
//
// Everything expires by the server's clock, which a statement reads after the locks were taken. A
// fence is the key's last fence plus 1, or the clock in microseconds if that is higher. The row of
// a key that is not in use is deleted after a minute. The store keeps a mark above the fences of
// all deleted rows, so fences rise even if the clock was set back.
package mysqlstore
