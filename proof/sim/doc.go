// Package sim runs clients of dibs against a store across a simulated network. The network
// delays, loses and repeats messages, and cuts processes off from the store. Processes are
// stopped past their leases, and killed. The store goes away, and comes back with its data or
// without. Time is that of testing/synctest, so that minutes pass in milliseconds.
//
//	worker ── dibs.Client ── recorder ── link ── · · network · · ── server ── memstore
//	          (real)         writes      delays, loses,             restarts,   (real)
//	                         events      repeats, cuts              forgets
//
// What happens follows from a seed: the processes and keys, their faults, and the fate of each
// message, which depends on what it is and when it leaves. Where two goroutines act in the same
// nanosecond, or two channels of a select are ready, the Go scheduler decides. So about seven
// seeds of ten repeat their history exactly, and the others differ in a few places.
//
// A process is stopped as far as others can see: no message leaves or reaches it, and its
// sections do not go on. The timers inside its client cannot be stopped. What they send leaves
// when the process continues.
//
// Clockless is another world, for a store that reads nobody's clock: there the clocks are what is
// wrong.
package sim
