// Package backoff says when something is asked again: a waiter, whether its turn has come, and a call
// that failed.
package backoff

import "time"

// A waiter asks although the store wakes it, because a wake-up may be lost. Waiters far back
// ask less often if the store wakes waiters.
const (
	Near = 500 * time.Millisecond
	Far  = 2 * time.Second
	// Asks is how many questions a place outlasts.
	Asks = 3
	// farAhead: with this many places ahead a waiter is far back.
	farAhead = 64

	// First is the first poll of a waiter if the store does not wake it. The next in line
	// polls every First to pollMax, the one behind it half as often, and so on.
	First   = 2 * time.Millisecond
	pollMax = 50 * time.Millisecond
)

// Next returns when a waiter asks again, with ahead places before it and left until the lease
// in its way expires, and the poll to give to the next call. notified says that the store
// wakes waiters.
func Next(notified bool, ahead int, left, poll time.Duration) (interval, nextPoll time.Duration) {
	interval = Near
	if notified && ahead >= farAhead {
		interval = Far
	}
	if ahead == 0 && left > 0 && left < interval {
		interval = max(left+time.Millisecond, First) // the lease that blocks can expire then
	}
	if !notified {
		poll = max(poll, First)
		interval = min(interval, poll*time.Duration(1+min(ahead, farAhead)))
		poll = min(poll+poll/2, pollMax)
	}
	return interval, poll
}

// PlaceTTL returns how long the place of a waiter with that interval lasts.
func PlaceTTL(interval time.Duration) time.Duration {
	if interval >= Far {
		return Asks * Far
	}
	return Asks * Near
}
