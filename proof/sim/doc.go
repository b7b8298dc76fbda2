// Package sim runs clients of dibs against a store across a network that is not real:
// it delays what is sent, loses it or its answer, delivers it twice or late, parts
// processes from the store, lets them stand still past their leases, kills them, and
// takes the store away, with or without its data. Time is that of testing/synctest, so
// that minutes pass in milliseconds and thousands of histories can be looked at.
//
//	worker ── dibs.Client ── recording ── link ── · · network · · ── server ── memstore
//	          (real)         writes  delays, loses,             restarts,   (real)
//	                         down    repeats, parts             forgets
//
// What happens follows from a seed: what there is, what befalls whom and when, and what
// becomes of what is sent, which the network draws from what it is and when it leaves.
// Where two goroutines do something at the same nanosecond the scheduler still has its
// say, and so has select where two channels are ready: some seven seeds of ten give the
// same history again to the letter, and the others one that differs in a few places.
//
// A process that stands still does so as far as others can see: nothing that it sends
// leaves, nothing that is sent to it arrives, and its sections do not go on. The
// timers inside its client cannot be held; what they lead to is sent when it wakes.
package sim
