// Package sqlitestore keeps leases, queues and records in one SQLite file: the
// store for one host, durable, without a server.
//
//	store, err := sqlitestore.Open("dibs.db", nil)
//
// Any number of processes of one host share a file. Every call is durable when
// it returns: SQLite's write-ahead log with synchronous=FULL. One goroutine per
// Store does all the writing, and puts all the calls that are there into one
// transaction, so that 64 callers pay for one fsync.
//
// # A key
//
// What happens by itself as time passes is written down when somebody next asks.
//
//	         Claim                        Settle Release, Keep
//	free ───────────▶ held ────────────────────────────────────▶ free, or
//	 │                │  ▲                                       offered to
//	 │ Claim of       │  │ Claim by that token                   the next
//	 │ a waiter       │  │                                       place
//	 ▼                │  │
//	queued ─────────▶ offered ── dibs.Turn is over ──▶ offered to the next
//	 │   its turn     │
//	 │                │ the lease runs out, or Settle Abandon
//	 │ its Place      ▼
//	 ▼ runs out      abandoned: the next is granted as attempt n+1
//	gone             unknown (AtMostOnce): nobody is, until Evict, Forget or
//	                 Resolve
//
// A reserved place in the queue is taken by the lease that is claimed from it, and
// stands again when that is abandoned, undone or runs out.
//
// # Transactions of the application
//
// Transactions begins transactions in which an application writes to the same file,
// and which settle a key as their last statement: effect and answer are committed
// together. The store's file can be the application's own, see Options.Shared.
//
//	claim ── held ── Tx: the file is locked ── the application's statements ─┐
//	                                                                         ▼
//	record, next waiter ◀── the store's next transaction ◀── COMMIT ◀── how the lease
//	                        (or whoever reads the key first)            ended is noted
//
// # Time
//
// Leases, places and records end by the host's time since boot, suspension
// included, which no setting of the wall clock changes. The file knows which
// boot it counts from; after a reboot it goes on from when it was last written.
// Only fences are taken from the wall clock, and they never fall.
package sqlitestore
