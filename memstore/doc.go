// Package memstore is the dibs.Store that lives in one process: the right one
// for tests and for services of one process, and the reference for what the
// contract means.
//
// It keeps the keys in a sharded table, each with its holders, its queue in
// the order of arrival and its record, and hands a key over in the step that
// frees it. Nothing outlives the process, and nothing is ever dropped to make
// room: a store that has reached a limit says dibs.ErrFull, because forgetting
// a record would run something twice.
//
// # The life of a key
//
//	        Claim                           Settle Release, Evict
//	free ──────────▶ held ──────────────────────────────▶ free, or offered
//	 ▲                │ │ ▲                                to the next place
//	 │ the offer      │ │ │ Claim by that token
//	 │ lapses and     │ │ └─────────────────── offered ◀── whatever frees the
//	 │ nobody waits   │ │                         │        key while somebody
//	 └────────────────┼─┼─────────────────────────┘        waits
//	                  │ │
//	                  │ └─▶ done: Settle Keep. The record answers the claims
//	                  │     that accept it, until its retention ends.
//	                  │
//	                  └───▶ abandoned: the lease ran out, or Settle Abandon.
//	                        The next holder is told (attempt, progress).
//	                        With AtMostOnce it is unknown instead, and
//	                        nobody is granted until Evict, Forget or Resolve.
//
// A record does not hinder a lock: "done" is an answer to those who accept it,
// and stands next to any of the other states. A key that is free and has no
// record takes no memory.
//
// A place in the queue is live (it is offered the key in its turn) or reserved
// (it stands, and everybody behind it, until somebody claims from it). A lease
// that was claimed from a reserved place has taken it out of the queue, and puts
// it back where it was unless it ends cleanly:
//
//	           Claim.Redeems            Release, Keep, Evict
//	reserved ────────────────▶ taken ─────────────────────────▶ gone
//	    ▲                        │
//	    └────────────────────────┘ Abandon, Undo, the lease ran out
//
// One that is first, while the key could be had, keeps others from it. The first
// of them that claims starts its Hold: when that is over the place has run out,
// unless its own token has prolonged it, or a lease has taken it, meanwhile.
//
// # Time
//
// What has run out is dead from that instant on, whether or not anybody has
// noticed: every look at a key starts with advance, which lets its time pass.
// A key that somebody waits for has a timer at the next moment that matters to
// the one in front. What nobody asks about is found by a sweep (see sweep.go).
package memstore
