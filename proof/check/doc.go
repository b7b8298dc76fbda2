// Package check reads the history of a run and decides whether a correct store, client and
// application could have made it.
//
// For each key, porcupine looks for an order of the calls in which a correct store could have
// given these answers. Its model has the lease (which token holds the key, and when its lease
// ends at the earliest and at the latest) and the record. Small rules check the rest: fences rise, sections do not overlap, waiters are granted in their order, and so on.
//
// The check never reports a correct store. A lease that was granted at an unknown moment ends at
// an unknown one, and counts only while it surely stands. A call without an answer may have
// happened, at any time later, or not at all. So a run with many faults is checked less
// strictly than one without, and Verdict.Unknown counts such calls. A question that cannot be
// decided in time is a failure.
package check
