// Package fault makes trouble for processes that use a store, and for the store's server,
// and counts how often the trouble was real.
//
// A fault strikes, heals, and reports hits. A hit is not that something was attempted:
// it is evidence from the system itself. A process is gone; a lease ran out while its
// worker stood still; a connection was closed under a call; a reply came and was dropped;
// the server says that it was started again, or that its clock is an hour ahead; a worker
// was told that the disk is full. A fault that cannot show such a thing has not hit,
// and a run that reports no violations is worth as much as the faults that bit in it.
//
//	wires, urls, err := fault.Through(url, len(workers)) // urls[i] is what worker i uses
//	target := &fault.Target{URL: url, Workers: workers, Wires: wires, TTL: time.Second}
//	apply, absent, err := fault.Select(target, "worker,network")
//	hits, err := apply[0].Strike(ctx, target, random)
//
// What a fault needs beyond the workers decides whether it applies: network faults need
// wires; faults of the server need a server of our own, which may be killed; those of data
// and of files say themselves what they need. Faults that take something away from others
// who use the same server do not strike there unless they are named.
package fault
