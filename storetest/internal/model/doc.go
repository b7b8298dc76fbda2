// Package model is the simplest correct dibs.Store there can be: one mutex,
// plain slices, everything looked through each time. It is what a property of
// storetest is read against, and the reference that random schedules are
// compared with. It is not for use: it is slow, and it never forgets.
//
// It tells a grant where somebody listens and the case is plain. Otherwise it wakes
// the waiter. It passes over waiters of stores that nobody listens at.
//
// It also has bugs, each of which can be switched on. They are the mistakes
// that locks over databases really make, and storetest has to catch each.
//
// What happens by itself as time passes is worked out when somebody next asks
// (see advance).
package model
