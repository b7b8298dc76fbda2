// Package asynqjobs is a mutex for Asynq's tasks. Tasks of one key run one after the other,
// in the order in which they were enqueued; see package jobs. Tasks of other keys are not
// delayed.
//
// Mutex.EnqueueContext enqueues tasks with a key, Mutex.Middleware wraps the handlers, and
// Config wraps the server's configuration. The first jobs.Options.Ahead unfinished tasks of
// a key are runnable. The others are parked in Asynq's own sets:
//
//	enqueued ──┬── among the first ──► pending ──► active ──┬── its turn ──► runs ──► as ever
//	           │                         ▲ ▲                ├── waits in the worker
//	           └── scheduled (parked) ───┘ └── retry (parked, no try used) ◄────┘ cannot wait
package asynqjobs
