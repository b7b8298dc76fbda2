// Package torture runs worker processes that use a store while faults strike, and checks
// what they did.
//
//	runner ── commands ──▶ worker process ── dibs.Client ── recorder ── dibs.Store
//	  ▲                        │                               │
//	  ├── writes with fences, errors ──────────────────────────┤
//	  └── the history, line by line, before each call leaves ──┘
//
// A run has four parts. While faults strike at random, the workers use the store as programs
// do, and also in ways that programs must not. After the last fault, in the recovery, every
// key must be free soon. Then the workers end in order and report what they leave behind.
// Then the histories of all workers are checked together.
//
// What the workers and the faults do derives from the seed. How the processes race does not.
package torture
