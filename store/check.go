package store

import (
	"context"
	"slices"
)

// Checker is implemented by stores that can check whether their backend is set up for what
// a Store promises, before data is lost. A Client does not use it.
type Checker interface {
	// Check looks at the backend and changes nothing. It returns what it found, the worst
	// first, or nothing if all is well. What it is not allowed to look at is a Finding, too
	// (SeverityUnchecked). The error means that the backend could not be asked.
	//
	// A store remembers the backend's clock for the next Check, which notices if the clock
	// was set back or forward.
	Check(ctx context.Context) ([]Finding, error)
}

// Severity says how bad a Finding is.
type Severity string

// The severities, the worst first.
const (
	// SeverityDangerous: what a Store promises does not hold, or will not hold after an
	// ordinary event: memory fills up, or the backend is restarted.
	SeverityDangerous Severity = "dangerous"
	// SeverityAdvice: what a Store promises is broken by a rare event, such as a machine
	// that fails at the wrong moment.
	SeverityAdvice Severity = "advice"
	// SeverityUnchecked: it could not be checked.
	SeverityUnchecked Severity = "unchecked"
)

// Finding is one thing that a Checker found.
type Finding struct {
	// Name names what was checked, for programs: "eviction". It does not change between
	// versions.
	Name     string
	Severity Severity
	// What says what was found and what it can lead to. Cure says what to do about it. A
	// sentence each, for people.
	What, Cure string
}

// Compare orders findings for slices.SortStableFunc, the worst severity first.
func (f Finding) Compare(g Finding) int {
	order := []Severity{SeverityDangerous, SeverityAdvice, SeverityUnchecked}
	return slices.Index(order, f.Severity) - slices.Index(order, g.Severity)
}
