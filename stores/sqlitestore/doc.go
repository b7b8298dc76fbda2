// Package sqlitestore keeps leases, queues and records in one SQLite file: the
// store for one host, durable, without a server.
//
//	store, err := sqlitestore.Open("dibs.db", nil)
//
// Any number of processes of one host share a file. Every call is durable when it
// returns: SQLite's write-ahead log with synchronous=FULL. One goroutine per Store
// writes, and puts all waiting calls into one transaction, so that 64 callers share one
// fsync.
//
// # A key
//
// The next call for a key records what has ended since.
//
//	         Claim                    Settle Release, Keep
//	free ───────────▶ held ────────────────────────────────▶ free: the waiter in front
//	 │                │  ▲                                    is woken
//	 │ Claim of       │  │ Claim of the waiter in front
//	 │ a waiter       │  │
//	 ▼                │  │
//	queued ───────────│──┘
//	 │                │ the lease runs out, or Settle Abandon
//	 │ its PlaceTTL       ▼
//	 ▼ is over       abandoned: the next grant is attempt n+1
//	removed          unknown (AtMostOnce): no grant until ForceRelease, Forget or Resolve
//
// The store pushes no grants: it wakes the waiter in front, which asks.
//
// # Transactions of the application
//
// With Transactions, an application writes to the same file and settles a key in one
// transaction: effect and answer commit together. The store's tables can be in the
// application's file, see Options.Shared.
//
//	claim ── held ── Tx: the file is locked ── the application's statements ── the key is settled
//	                                                                                    │
//	the next waiter is woken ◀── the store's next transaction ◀── COMMIT ◀──────────────┘
//
// # Time
//
// Leases, places and records end by the host's time since boot, including suspension,
// so a wall clock may be set. The file knows its boot; after a reboot time continues from
// the last write. Only fences use the wall clock, and they never fall.
package sqlitestore
