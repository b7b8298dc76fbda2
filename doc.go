// Package dibs calls dibs on a key: one caller runs, everybody else waits their
// turn, moves on, or gets the same answer.
//
// There is one idea. A lock is a lease that leaves nothing behind. An
// idempotency key is a lease that leaves a record. A job mutex is a lease whose
// place in the queue was taken when the job was enqueued. A Client takes, waits
// for, renews and settles leases; a Store keeps them, one folder per backend.
//
//	client, err := dibs.New(store, nil)
//	err = client.Do(ctx, "invoice 42", func(ctx context.Context) error {
//		// Alone, until ctx ends.
//	})
//
// The life of a lease, as a caller sees it:
//
//	          Acquire
//	             │
//	  ┌──────────┼───────────────┐
//	  │ granted  │ others hold   │ a record answers, another fingerprint,
//	  │          ▼               │ unknown outcome
//	  │      waiting ── gives up ┤
//	  │          │ its turn      ▼
//	  ▼          │        ErrHeld, ErrDone, ErrMismatch, …
//	held ◄───────┘
//	│  │ ▲ └───────── renewed every third of its TTL
//	│  └─┘
//	├── Release ───── free, nothing left behind
//	├── Complete ──── done, a record left behind
//	├── Abandon ───── abandoned: the next holder is told
//	└── not confirmed in time, or taken away ── lost: the context ends with
//	                                            cause ErrLost
//
// A holder believes in its lease until the moment it sent the claim, or the
// last successful renewal, plus the TTL, less a small margin, on its own
// monotonic clock. A process that was paused for longer finds the lease's
// context dead when it wakes. What it did in between, without looking, is what
// the fencing token is for: see Lease.Fence.
package dibs
