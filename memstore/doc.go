// Package memstore is the dibs.Store that lives in one process: the right one
// for tests and for services of one process, and the reference for what the
// contract means.
//
// It keeps the keys in a sharded table, each with its leases, its places in the
// order of their numbers, and its record. Nothing outlives the process, and nothing is
// ever dropped to make room: a store that has reached a limit says dibs.ErrFull, because
// forgetting a record would run something twice.
//
// # The life of a key
//
//	      Claim            Settle Release, ForceRelease
//	free ──────▶ held ──────────────────────────▶ free
//	              │
//	              ├─▶ done: Settle Keep. The record answers the claims that accept
//	              │   it, until its retention ends.
//	              │
//	              └─▶ abandoned: the lease ran out, or Settle Abandon. The next
//	                  holder is told (attempt, progress). With AtMostOnce it is
//	                  unknown instead, and nobody is granted until ForceRelease, Forget
//	                  or Resolve.
//
// A record does not hinder a lock: "done" is an answer to those that accept it,
// and stands next to any of the other states. A key that is free and has no
// record takes no memory.
//
// When a key can be had, the waiter in front is woken, and asks. Until it does, or until
// its Stay is over, the key is nobody's. No grant is told, because to ask takes less
// than a microsecond.
//
// # Time
//
// What has run out is dead from that instant on, whether or not anybody has
// noticed: every look at a key starts with advance, which lets its time pass.
// A key that somebody waits for has a timer at the next moment that matters to
// the one in front. What nobody asks about is found by a sweep (see sweep.go).
package memstore
