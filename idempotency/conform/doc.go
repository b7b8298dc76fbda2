// Package conform checks implementations of idempotent HTTP from outside. It has a published
// list of cases (see Cases and docs/reference/conformance.md). Each case sends requests to a target, and
// looks at the answers and at what the target let through.
//
//	kit ── requests ──▶ target ── what it lets through ──▶ origin
//	 │◀──── answers ─────  │ ◀───────── answers ──────────── │
//	 └──────────── what to answer, what was seen ────────────┘
//
// The target is a proxy that forwards to an Origin, or a middleware in front of one. The kit
// sets what the origin answers to the requests of each case, counts how often a request ran,
// and makes the origin wait, close connections and truncate answers.
//
// With Options.Service the target answers by itself. Then a case is judged only if the answers alone
// show what it asks for.
//
// Every case of a run has its own keys, so a run can be repeated, also against a shared server.
// The kit writes HTTP/1.1 byte by byte, because a client library would hide the defects that
// the kit looks for.
package conform
