// Package engine decides what happens to a key, for all stores in Go. It speaks no SQL.
//
//	memstore                     keeps the State of each key between calls (memory.go)
//	sqlitestore                  loads a key into a Batch, changes its State, writes the Changes
//	pgstore, mysqlstore          the same for many keys at once, through a Server and a Store
//
// A store that gives NextFence has one mark of fences for all keys, and only wakes. The others
// push grants.
//
// # The stores on servers
//
// The package is also what these do alike: a store gives it a Server, and gets a Store.
//
// Most calls are plain: they are about a key with one permit and no rows in other tables. The
// server has statements for them, which take one round trip and agree with what is decided
// here.
//
// For the other calls, the server locks the rows of some keys, sorted, and loads what belongs
// to them into a Batch: each key's row, leases with rows of their own, the fences of saved
// progress, and the front of the queue. A call, an operator or the passing of time changes each
// State in memory. Then the server writes the Changes and commits, and WakeUps are sent. So a
// batch takes two round trips, however many keys it has and whatever happens to them.
//
//	lock, load ──▶ Claim, Settle, … ──▶ Changes ──▶ commit ──▶ WakeUps
//	   ▲                  │
//	   └──── Short ───────┘  a decision needs more of a long queue
//
// Each change begins with Advance, which ends what has expired and serves the waiters that this
// frees the key for. Nothing expires by itself in between.
//
// Times are the server's, in microseconds. What does not exist is zero, in memory and in the
// tables. RowColumns, LeaseColumns and PlaceColumns name the columns.
package engine
