// Package dibs calls dibs on a key: one caller runs, and all others wait their turn, do
// something else, or get the same answer.
//
// There is one idea. A lock is a lease that leaves nothing behind. An idempotency key is a
// lease that leaves a record. A job mutex is a lease whose place in the queue was taken when
// the job was enqueued. A Client takes, waits for, renews and settles leases. A Store keeps
// them; each backend has a folder.
//
//	client, err := dibs.New(store, nil)
//	err = client.Do(ctx, "invoice 42", func(ctx context.Context) error {
//		// Alone, until ctx ends.
//	})
//
// A lease, as a caller sees it:
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
//	├── Abandon ───── abandoned: the next holder learns of it
//	└── not renewed in time, or taken away ── lost: the context ends with
//	                                          cause ErrLost
//
// A holder trusts its lease for the TTL, less a small margin, on its own monotonic clock. The
// time counts from the moment when it sent the claim or the last successful renewal. If a
// process was paused for longer, the lease's context has ended when the process continues. The
// process may then still write without looking at the context. The fencing token is for that:
// see Lease.Fence.
package dibs
