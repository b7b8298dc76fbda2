// Package torture lets processes use a store while faults run, and has what they did
// checked.
//
//	        commands, answers of the resource
//	runner ───────────────────────────────────▶ worker process ── dibs.Client ── recorder ── dibs.Store
//	  ▲   ◀───────────────────────────────────        │
//	  │     writes with fences, errors seen           │
//	  └───────────────────────────────────────────────┘
//	        the history, line by line, before each call leaves
//
// A run has four parts. Under fire, the workers do what users of a client do and what
// none should, and faults strike at random. In the calm that follows every key must be
// obtainable soon. Then the workers end in order and say what they have left. Then the
// histories of all of them are checked as one.
//
// What the workers do and when faults strike derives from the seed. What comes of it
// does not: processes race.
package torture
