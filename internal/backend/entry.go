package backend

import (
	"slices"

	"github.com/dibs-go/dibs"
)

// Describe sets an entry's Condition by what there is of its key, the first that applies.
// It stays "" when there is nothing.
func Describe(e *dibs.Entry, held, unknown, abandoned bool) {
	switch {
	case held:
		e.Condition = dibs.ConditionHeld
	case unknown:
		e.Condition = dibs.ConditionUnknown
	case e.Waiters > 0:
		e.Condition = dibs.ConditionWaiting
	case e.Record != nil:
		e.Condition = dibs.ConditionDone
	case abandoned:
		e.Condition = dibs.ConditionAbandoned
	}
}

// Matches reports whether there is something to tell of an entry that the query asks for.
func Matches(e *dibs.Entry, q *dibs.Query) bool {
	return e.Condition != "" && (q.ID == "" || e.Record != nil && e.Record.ID == q.ID ||
		slices.ContainsFunc(e.Attempts, func(a dibs.Attempt) bool { return a.ID == q.ID }))
}
