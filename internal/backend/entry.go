package backend

import (
	"slices"

	"github.com/dibs-go/dibs"
)

// Describe sets an entry's Condition: the first that applies, or "" if none does.
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

// Matches reports whether the entry has a Condition and the query selects it by its ID.
func Matches(e *dibs.Entry, q *dibs.Query) bool {
	return e.Condition != "" && (q.ID == "" || e.Record != nil && e.Record.ID == q.ID ||
		slices.ContainsFunc(e.Attempts, func(a dibs.Attempt) bool { return a.ID == q.ID }))
}
