// Package sqllock has what a team with a SQL database needs when two of its processes do
// the same thing: the locks of the database, and what teams build on them by hand.
//
//	locks, err := sqllock.NewAdvisory(ctx, db, nil)
//	…
//	err = locks.Do(ctx, sqllock.NameKey("shop", "nightly report"), nil, func(ctx context.Context) error {
//		return report(ctx) // one at a time, on all hosts
//	})
//
// # Locks of a session
//
// Advisory takes PostgreSQL's advisory locks, Named those of MySQL and MariaDB
// (GET_LOCK). Each lock has a connection of the pool. The Lock that they return lasts as
// long as its session:
//
//	        Lock, TryLock                        Unlock
//	free ───────────────────▶ held ─────────────────────────────▶ free
//	          │                │
//	          │                │ the session ends: killed, cut off,
//	          │ held           │ the server restarts
//	          ▼                ▼
//	        dibs.ErrHeld     lost: another session may get the lock, and the
//	                         Lock's context ends with cause dibs.ErrLost
//
// A session never returns to the pool with a lock in it. If it is not certain that the
// lock was released, the session is ended. These locks have no fences: after the server
// ends a session, another holder may begin before the first one learns that. If a late
// write would do harm, use FenceCheck with the fence of a dibs lease.
//
// LockTx takes an advisory lock for a transaction. It works behind a pooler.
//
// # Rows, numbers and fences
//
// Row reads a row, calls a function that changes it, and writes it back, so that no
// update is lost. It uses the row's lock or its version. Sequence gives numbers without
// gaps. FenceCheck refuses writes of a holder that another holder has overtaken. Transact
// runs a transaction again after a conflict.
package sqllock
