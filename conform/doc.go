// Package conform checks implementations of idempotent HTTP, from outside: a published
// list of cases (see Cases and docs/conformance.md), each of which sends requests to a
// target and looks at what comes back and at what the target let through.
//
//	kit ── requests ──▶ target ── what it lets through ──▶ origin
//	 │◀──── answers ─────  │ ◀───────── answers ──────────── │
//	 └──────────── what to answer, what was seen ────────────┘
//
// The target is whatever stands guard: a proxy that forwards to an Origin, or a program
// that has one behind its middleware. The kit tells the origin what to answer to the
// requests of each case, asks it how often a request ran and what of it arrived, and
// makes it wait, hang up and break off in mid-answer.
//
// Every run and every case has names and keys of its own, so that it can be repeated, and
// be run against a server that others use too. The kit speaks HTTP/1.1 by hand, because a
// client library would mend what is to be seen.
package conform
