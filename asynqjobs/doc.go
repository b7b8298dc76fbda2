// Package asynqjobs lets Asynq's tasks of one key take turns, in the order in which
// they were enqueued, as package jobs says; the tasks of all other keys are not held
// up by them.
//
// Three things make an Asynq program take part:
//
//   - Client enqueues tasks that have a key (NewTask), and takes their places.
//   - Worker.Middleware goes around the handlers.
//   - Config goes around the configuration of the server, so that a task whose turn
//     has not come is neither counted nor reported as a failed one.
//
// A task that has to wait is put off in Asynq's own data, as a retry that does not
// count, and made pending again when its turn is near:
//
//	pending ──► active ──┬── its turn, or near it ──── runs ──► as ever: done, retry, archived
//	   ▲                 │
//	   │                 └── put off: retry, without counting an attempt
//	   │  its turn is near            │
//	   └──────────────────────────────┘
package asynqjobs
