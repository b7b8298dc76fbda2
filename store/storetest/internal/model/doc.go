// Package model is the simplest correct store.Store: one mutex and plain slices, which each
// call reads from the beginning. Random schedules compare other stores with it. It is slow
// and never forgets, so it is only for tests.
//
// It pushes a grant if the waiter's process listens and the waiter needs nothing else.
// Otherwise it wakes the waiter. It skips waiters whose process does not listen.
//
// It has bugs that can be switched on one by one. They are mistakes that locks over
// databases really make, and storetest must catch each.
//
// It notices what has expired at the next call for the key (see advance).
package model
