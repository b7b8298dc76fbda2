package storetest

import "slices"

// Property is one thing that every store must do.
type Property struct {
	// Name is short, fit for a test's name, and unique.
	Name string
	// Why says what the property protects, for the person whose store fails.
	Why string
	// Needs are the features without which it cannot be checked.
	Needs []Feature
	// Heavy properties use the processor rather than wait, or need luck to find a
	// mistake. In real time they are checked only under the build tag nightly, one at
	// a time, before the others.
	Heavy bool
	// PushedEnds is whether told grants run out in it. In real time they are short then,
	// and none can be relied on to be alive. In all other properties they last for long.
	PushedEnds bool
	// Check checks the property once, on a fresh backend.
	Check func(t *Trial)
}

// Properties returns all properties, in the order in which a new store is best
// made to pass them.
func Properties() []Property {
	return slices.Concat(
		claimProperties,
		expiryProperties,
		staleProperties,
		recordProperties,
		fingerprintProperties,
		abandonedProperties,
		unknownProperties,
		batchProperties,
		lookProperties,
		notifyProperties,
		turnProperties,
		pruneProperties,
		inspectProperties,
		raceProperties,
		scheduleProperties,
		cancelProperties,
		clockProperties,
		fenceProperties,
		keysProperties,
		queueProperties,
		permitsProperties,
		weightProperties,
		reserveProperties,
		fromProperties,
		numberProperties,
		holdProperties,
		undoProperties,
	)
}
