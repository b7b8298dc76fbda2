package dibs

import "context"

// Checker is implemented by stores that can tell whether their backend is set up
// for what a Store promises, before something is lost. It serves operators;
// nothing in a Client's normal work calls it.
type Checker interface {
	// Check looks at the backend and returns what it found, the worst first, and
	// nothing when all is well. What it may not look at is a Finding too
	// (SeverityUnchecked). It changes nothing. The error means that the backend
	// could not be asked.
	//
	// A store remembers what it saw for the next Check, so that a clock that was
	// set is noticed.
	Check(ctx context.Context) ([]Finding, error)
}

// Severity says how bad a Finding is.
type Severity string

// The severities, the worst first.
const (
	// SeverityDangerous: what a Store promises does not hold, or will not with
	// nothing but ordinary events: memory fills up, the backend is restarted.
	SeverityDangerous Severity = "dangerous"
	// SeverityAdvice: what a Store promises depends on something that need not
	// happen, such as a machine that fails at the wrong moment.
	SeverityAdvice Severity = "advice"
	// SeverityUnchecked: it could not be looked at.
	SeverityUnchecked Severity = "unchecked"
)

// Finding is one thing that a Checker found.
type Finding struct {
	// Name names what was looked at, for programs: "eviction". It does not change.
	Name     string
	Severity Severity
	// What is found and what it can lead to, and Cure is what to do about it: a
	// sentence each, for people.
	What, Cure string
}
