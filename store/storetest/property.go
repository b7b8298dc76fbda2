package storetest

import "slices"

// Property is one thing that every store must do.
type Property struct {
	// Name is short, fit for a test's name, and unique.
	Name string
	// Why says what the property protects, for the author of a store that fails it.
	Why string
	// Needs are the features without which it cannot be checked. Default: none.
	Needs []Feature
	// Heavy properties use the processor instead of waiting, or need luck to find a
	// mistake. In real time they are checked only under the build tag nightly, one at a
	// time, before the others.
	Heavy bool
	// PushedEnds says that pushed grants expire in it. In real time they are short then, and
	// the property must not rely on a live one. In all other properties they last long.
	PushedEnds bool
	// Check checks the property once, on a fresh backend.
	Check func(t *Trial)
}

// Properties returns all properties. A new store passes them best in this order.
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
		relayProperties,
		pruneProperties,
		inspectProperties,
		forceProperties,
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
		graceProperties,
		undoProperties,
	)
}

func property(name, why string, check func(*Trial)) Property {
	return Property{Name: name, Why: why, Check: check}
}

func (p Property) needs(f ...Feature) Property {
	p.Needs = f
	return p
}

func (p Property) heavy() Property {
	p.Heavy = true
	return p
}

func (p Property) pushedEnds() Property {
	p.PushedEnds = true
	return p
}
