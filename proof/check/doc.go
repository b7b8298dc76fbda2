// Package check reads the history of a run and says no when the answer is no.
//
// The answers of a store are compared, key by key, with two models for which porcupine
// looks for an order that a correct store could have answered in: the fenced lease (who
// may hold the key, until when at the earliest and at the latest) and the idempotent
// register (absent, running, done). What workers saw is held against invariants, each a
// small checker of its own: fences rise, a guarded resource takes no smaller fence than
// it has seen, sections do not overlap, effects happen once, what was acknowledged is
// found, those who waited together are granted in their order, and so on.
//
// It never accuses a correct store. A lease that was granted between two moments ends at
// an unknown one, and counts only while it lasts for certain; what nobody answered the
// answer of may have happened, at any time later, or not. So a run under many faults is
// checked less strictly than one without, and the Verdict says how much was unknown.
// What cannot be decided in time is a failure, not a pass.
package check
