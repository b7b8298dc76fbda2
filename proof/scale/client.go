package main

import "time"

// What a client does is the same on every store. The constants are those of the root
// package: wait.go, renew.go and lease.go.
const (
	askNear   = 500 * time.Millisecond // askNear: how often a waiter asks
	askFar    = 2 * time.Second        // askFar: one that is far back
	farAhead  = 64                     // farAhead: from so many places ahead on
	renewEach = 3                      // renewEvery: a lease is renewed after that part of its TTL
	renewSoon = 15                     // retryEvery: what is due within that part of it comes along
)

// Asks returns how often each second those ask who wait for a key, so many of them.
func Asks(waiters int) float64 {
	near := min(waiters, farAhead)
	return float64(near)*perSecond(askNear) + float64(waiters-near)*perSecond(askFar)
}

// Renewals returns how many calls a client makes each second to renew so many leases
// that were taken at different times, and how many of them one call renews. Those that
// are due soon come along, and stay together from then on: so there are five groups at
// most, however many leases there are.
func Renewals(leases int, ttl time.Duration) (calls, each float64) {
	if leases == 0 {
		return 0, 0
	}
	const most = renewSoon / renewEach
	n := float64(leases)
	groups := max(1, most*n/(n+most))
	return groups * perSecond(ttl/renewEach), n / groups
}

// Batched returns how many calls a client makes each second for so many elements of one
// kind, when a call takes that long: while one is under way, what arrives forms the
// next.
func Batched(elements float64, trip time.Duration) (calls, each float64) {
	if elements == 0 {
		return 0, 0
	}
	calls = min(elements, perSecond(trip))
	return calls, elements / calls
}

// Once is how many claims and settlements so many requests are, that share being of
// those that were done before: a first one is a claim and a settlement, a duplicate a
// claim.
func Once(requests, duplicates float64) (first, replays float64) {
	return requests * (1 - duplicates), requests * duplicates
}
