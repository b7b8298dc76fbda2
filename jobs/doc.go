// Package jobs is a mutex for background jobs, whatever queue they come from: jobs
// of one key run one after the other, in the order in which they were enqueued, on
// however many hosts, and the jobs of all other keys are not held up by them.
//
// The mutex is a dibs key whose place is taken when the job is enqueued and travels
// with the job. What runs the jobs calls Mutex.Run with what it knows of one; the
// modules riverjobs and asynqjobs do that for River and Asynq, and Handle for a loop
// of one's own.
//
//	enqueued ── a worker has it ──┬── its turn ─────────── runs ──┬── done: the place is given up
//	(Enqueue:                     │                      ▲        ├── failed, comes again: keeps its place
//	 a place)                     │ others come first    │        │   or lets the others pass (Failed)
//	                              ▼                      │        ├── the worker died: keeps its place
//	                        near its turn, and a seat    │        │   for Recovery
//	                        is free: waits in the worker ┘        └── failed for good: the place is given up
//	                              │ otherwise
//	                              ▼
//	                        put off: the worker is free, the place stands, and the job
//	                        is made runnable when it is near its turn
//
// A job whose turn has not come is not a failed one: its queue's attempts are not
// used up by it.
package jobs
