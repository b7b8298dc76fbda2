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
//	         Claim                    Settle Release, Keep
//	free ───────────▶ held ────────────────────────────────▶ free: the waiter in front
//	 │                │  ▲                                    is woken
//	 │ Claim of       │  │ Claim of the waiter in front
//	 │ a waiter       │  │
//	 ▼                │  │
//	queued ───────────│──┘
//	 │                │ the lease runs out, or Settle Abandon
//	 │ its Stay       ▼
//	 ▼ is over       abandoned: the next is granted as attempt n+1
//	gone             unknown (AtMostOnce): nobody is, until ForceRelease, Forget or Resolve
//
// A key is granted to nobody in its absence: who is in front is woken and asks.
//
// # Transactions of the application
//
// Transactions begins transactions in which an application writes to the same file,
// and which settle a key at their end: effect and answer are committed together. The
// store's file can be the application's own, see Options.Shared.
//
//	claim ── held ── Tx: the file is locked ── the application's statements ── the key is settled
//	                                                                                    │
//	the next waiter is woken ◀── the store's next transaction ◀── COMMIT ◀──────────────┘
//
// # Time
//
// Leases, places and records end by the host's time since boot, suspension
// included, which no setting of the wall clock changes. The file knows which
// boot it counts from; after a reboot it goes on from when it was last written.
// Only fences are taken from the wall clock, and they never fall.
package sqlitestore
