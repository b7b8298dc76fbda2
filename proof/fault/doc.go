// Package fault makes faults for processes that use a store, and for the store's server, and
// counts how often they hit.
//
// A hit is evidence from the system itself, not an attempt: a process ended by the signal, a
// lease ended while its worker was stopped, a connection was reset during a call, a reply came
// and was dropped, the server says that it was started again, a worker got the error that the
// disk is full. A run without violations says as much as the hits of its faults.
//
//	wires, urls, err := fault.Through(url, len(workers)) // urls[i] is the URL of worker i
//	target := &fault.Target{URL: url, Workers: workers, Wires: wires, TTL: time.Second}
//	apply, absent, err := fault.Select(target, "worker,network")
//	hits, err := apply[0].Strike(ctx, target, random)
//
// A fault applies if the target has what it needs. Faults of the network need wires. Faults of
// the server need a server that is the run's own. Faults that take something away from other
// users of a server apply only if the list names them.
package fault
