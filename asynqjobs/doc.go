// Package asynqjobs lets Asynq's tasks of one key take turns, in the order in which
// they were enqueued, as package jobs says. The tasks of other keys are not held up.
//
// Mutex.EnqueueContext enqueues tasks that have a key, Mutex.Middleware goes around the handlers, and
// Config around the server's configuration. Of a key's unfinished tasks the first
// jobs.Options.Ahead are runnable, and all others are parked in Asynq's own sets:
//
//	enqueued ──┬── among the first ──► pending ──► active ──┬── its turn ──► runs ──► as ever
//	           │                         ▲ ▲                ├── waits in the worker
//	           └── scheduled (parked) ───┘ └── retry (parked, no attempt used) ◄┘ no room
package asynqjobs
