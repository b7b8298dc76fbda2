// Package jobs is a mutex for background jobs, whatever queue they come from: jobs
// of one key run one after the other, in the order in which they were enqueued, on
// however many hosts, and the jobs of all other keys are not held up by them.
//
// The mutex is a dibs key whose place is taken when the job is enqueued and travels
// with the job. What runs the jobs calls Mutex.Run with what it knows of one; the
// modules riverjobs and asynqjobs do that for River and Asynq, and Handle for a loop
// of one's own.
//
//	enqueued ──┬── among the first Ahead of its key: runnable ── a worker has it ──┐
//	(a place)  └── all others: parked in the queue ── promoted ────────────────────┤
//	                                                                               │
//	        ┌──────────────────────────────────────────────────────────────────────┘
//	        ├── its turn ── runs ──┬── done, or failed for good: gives its place up
//	        │     ▲                ├── failed, comes again: keeps its place, or not (Failed)
//	        │     │                └── its worker died: keeps its place for Recovery
//	        ├── waits in the worker, if no more than half of the pool does
//	        └── otherwise parked again
//
// A job whose turn has not come is not a failed one: its queue's attempts are not
// used up by it.
package jobs
