// Package casstore is a store.Store on anything that keeps objects and replaces one only if it is
// unchanged: etcd, an object storage such as S3, a key-value store. KV is what it needs of the
// engine: four calls. It reads no clock of a server, and no wall clock.
//
// All that there is of a key is one object. A call reads the object, package engine decides, and
// one conditional write commits that. If another call was faster, it begins again.
//
// # Time
//
// The time is a number in one more object, which the processes move (see Register). It never runs
// faster than real time. It lags by up to two ticks, and stands while no process uses the store. A
// process moves it while a key that it asked for is held or waited for.
//
// So a lease never ends before its TTL is over, if any two monotonic clocks agree to a fiftieth.
// If its holder dies, the key is free after the TTL and two ticks. If all processes were away in
// between, it is free at the latest when the TTL has passed again after the first one came back.
//
// # Costs
//
// A call reads two objects and writes one. A waiter reads two objects with each poll. Each process
// reads the clock with each tick, and one of them writes it.
//
// The queue of a key is bounded (Options.MaxWaiters), because each step of the key writes all of
// it. For the same reason records are small (Options.MaxObject). The store is for locks, leaders
// and scheduled work; the answers of a busy API belong in a database.
package casstore
