//go:build race

package idempotency_test

// raceEnabled: the race detector allocates on its own.
const raceEnabled = true
