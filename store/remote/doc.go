// Package remote is what the stores on SQL servers do alike: a store gives it a Server, and gets a
// Store.
//
// Most calls are plain: they are about a key with one permit and no rows in other tables. The
// server has statements for them, which take one round trip and agree with what package engine
// decides.
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
package remote
