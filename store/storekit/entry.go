package storekit

import (
	"slices"
	"time"

	"github.com/dibs-go/dibs/store"
)

// Describe sets an entry's Condition: the first that applies, or "" if none does.
func Describe(e *store.Entry, held, unknown, abandoned bool) {
	switch {
	case held:
		e.Condition = store.ConditionHeld
	case unknown:
		e.Condition = store.ConditionUnknown
	case e.Waiters+e.Reserved > 0:
		e.Condition = store.ConditionWaiting
	case e.Record != nil:
		e.Condition = store.ConditionDone
	case abandoned:
		e.Condition = store.ConditionAbandoned
	}
}

// Selects reports whether the query selects the key, as far as the key alone tells.
func Selects(q *store.Query, k store.Key) bool {
	return (q.Namespace == nil || *q.Namespace == k.Namespace) && (q.Name == "" || q.Name == k.Name) &&
		(q.Match == nil || q.Match(k))
}

// Matches reports whether the entry has a Condition and the query selects it by its ID, its
// Condition and how long it has been held.
func Matches(e *store.Entry, q *store.Query) bool {
	return e.Condition != "" && (len(q.Conditions) == 0 || slices.Contains(q.Conditions, e.Condition)) && !young(e, q.HeldFor) &&
		(q.ID == "" || e.Record != nil && e.Record.ID == q.ID ||
			slices.ContainsFunc(e.Runs, func(a store.Run) bool { return a.ID == q.ID }))
}

// young reports whether a key has been held for less than that, and no claim waits for it.
func young(e *store.Entry, least time.Duration) bool {
	return least > 0 && e.Condition == store.ConditionHeld && e.Waiters == 0 &&
		!slices.ContainsFunc(e.Runs, func(a store.Run) bool { return a.Left > 0 && a.Since >= least })
}

// Part is a part of the keys that a store can find without the others.
type Part uint8

// The parts of the keys.
const (
	All  Part = iota
	Live      // those with a lease, a place or an abandoned attempt
	Kept      // those with a record
)

// PartOf returns the smallest part that has all keys in the query's Conditions.
func PartOf(q *store.Query) Part {
	switch done := slices.Contains(q.Conditions, store.ConditionDone); {
	case len(q.Conditions) == 0:
		return All
	case !done:
		return Live
	case slices.ContainsFunc(q.Conditions, func(c store.Condition) bool { return c != store.ConditionDone }):
		return All
	}
	return Kept
}

// Queue counts the places of a key as they come, in the order of their numbers, a waiter before
// the reserved place with its number.
type Queue struct {
	Waiters, Reserved int

	waits int64 // the number of the last waiter
}

// Add counts a place with that number, which is not 0. leased says that a lease was granted at
// that number. It returns the use of a reserved place.
func (q *Queue) Add(number int64, reserved, leased bool) store.Use {
	switch {
	case !reserved:
		q.Waiters++
		q.waits = number
	case leased:
		return store.UsedByLease
	case q.waits == number:
		return store.UsedByWait
	default:
		q.Reserved++
	}
	return store.Unused
}
