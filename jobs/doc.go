// Package jobs is a mutex for background jobs of any queue. Jobs of one key run one after
// the other, in the order in which they were enqueued, on any number of hosts. Jobs of
// other keys are not delayed.
//
// The mutex is a dibs key. A job's place is reserved when the job is enqueued, and its
// ticket travels with the job. The worker calls Mutex.Run with a description of the job.
// The modules riverjobs and asynqjobs do that for River and Asynq, Handle for other loops.
//
//	enqueued ──┬── among the first Ahead of its key: runnable ── a worker has it ──┐
//	(a place)  └── all others: parked in the queue ── promoted ────────────────────┤
//	                                                                               │
//	        ┌──────────────────────────────────────────────────────────────────────┘
//	        ├── its turn ── runs ──┬── done, or failed for good: its place ends
//	        │     ▲                ├── failed, is tried again: keeps its place, or not (Failed)
//	        │     │                └── its worker died: the place stays for CrashGrace
//	        ├── waits in the worker, if no more than half of the pool does; if its worker
//	        │   dies then, its place stays for Grace
//	        └── otherwise parked again: its place stays for CrashGrace
//
// A job that is requeued has not failed: it uses no try of its queue.
package jobs
