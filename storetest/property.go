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
	// Heavy properties use the processor rather than wait; in real time they
	// run one at a time, before the others. No lease in them is short, so that
	// a failure is not the machine's fault, and is not tried again, as it may be a race
	// that is rarely lost: unless the trial says that it missed a turn.
	Heavy bool
	// Check tries the property once, on a fresh backend.
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
		grantProperties,
		pruneProperties,
		inspectProperties,
		raceProperties,
		scheduleProperties,
		cancelProperties,
		clockProperties,
		fenceProperties,
		keysProperties,
		permitsProperties,
		reserveProperties,
		redeemProperties,
		takenProperties,
		redeemerProperties,
		holdProperties,
		idleProperties,
		undoProperties,
		turnProperties,
		queueProperties,
	)
}
