// Package memstore is the store.Store in the memory of one process. It is for tests and for
// services of one process, and it is the reference for the contract.
//
// It keeps the keys in sharded maps. Each key has its record, and a state of package engine,
// which decides what happens to the key, while it has anything else. Nothing outlives the
// process. A store that has reached a limit returns store.ErrFull and never drops a record to
// make room, because work would run twice then.
//
// # The states of a key
//
//	      Claim            Settle Release, ForceRelease
//	free ──────▶ held ──────────────────────────▶ free
//	              │
//	              ├─▶ done: Settle Keep. The record answers the claims that accept
//	              │   it, until its retention ends.
//	              │
//	              └─▶ abandoned: the lease expired, or Settle Abandon. The next
//	                  holder gets attempt and progress. With AtMostOnce the key is
//	                  unknown instead: it is not granted until ForceRelease, Forget
//	                  or Resolve.
//
// A record does not hinder a lock: it answers only the claims that accept it, so a key can
// be done and in one of the other states at once. A free key without a record takes no
// memory.
//
// When a key becomes free, the store wakes the waiter in front, which asks. Until it asks or
// its PlaceTTL is over, the key has no holder. The store pushes no grants, because to ask takes
// less than a microsecond.
//
// # Time
//
// What has expired has ended at that instant, even if no call has noticed it, because the
// engine notices it when each step begins. A key with waiters has a timer for the next
// instant that matters to the waiter in front. A sweep a minute finds all else (see
// sweep.go).
package memstore
