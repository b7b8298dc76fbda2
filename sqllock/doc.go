// Package sqllock has the tools that a team with a SQL database reaches for when two of
// its processes meet: the locks that the database has already, and what is commonly
// built with them by hand.
//
//	locks, err := sqllock.NewAdvisory(ctx, db, nil)
//	…
//	err = locks.Do(ctx, sqllock.NameKey("shop", "nightly report"), nil, func(ctx context.Context) error {
//		return report(ctx) // one at a time, on all hosts
//	})
//
// # Locks of a session
//
// Advisory takes PostgreSQL's advisory locks on a connection of the pool each, Named
// those of MySQL and MariaDB (GET_LOCK). What they return is a
// Lock, which lives as long as its session:
//
//	        Lock, TryLock                        Unlock
//	free ───────────────────▶ held ─────────────────────────────▶ free
//	          │                │
//	          │                │ the session ends: killed, cut off,
//	          │ held           │ the server restarts
//	          ▼                ▼
//	        dibs.ErrHeld     lost: the server gives it to others, and the
//	                         Lock's context ends with cause dibs.ErrLost
//
// A session never goes back to a pool with a lock in it: whatever is not known to have
// been given up is ended with its session. There are no fences here: between the moment
// in which the server ends a session and that in which the holder hears of it, another
// one may begin. Where that must not write, guard it with a fence: see Guard, and dibs
// itself, whose leases have one.
//
// LockTx takes an advisory lock for a transaction, behind a pooler too.
//
// # Rows, numbers and fences
//
// Row reads a row, lets a function change it and writes it back, under the row's lock
// or by its version, so that no update is lost. Sequence numbers without a gap. Guard
// refuses the writes of a holder who was overtaken. Transact runs a transaction again
// that the database gave up on.
package sqllock
