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
// faster than real time. It stops while no process uses the store: a process moves it while a key
// that it asked for is held or waited for, for a minute at most after it asked.
//
// So a lease never ends before its TTL is over, if any two monotonic clocks agree to a fiftieth.
// If its holder dies, a waiter has the key at most five ticks after the TTL. With each tick the
// time of one call is lost, so the TTL takes longer if a call takes a large part of a tick. If
// all processes were away in between, the key is free at the latest when the TTL has passed again
// after the first one came back.
//
// So a record is kept for its retention of time in which the store was used, which can be days of
// real time. What must happen once a day needs another store.
//
// The place of a waiter that died stays for ten ticks more than was asked for, and a quarter of one
// for each place of the queue.
//
// # Costs
//
// A call reads two objects and writes one, so to take a key and give it back takes four reads and
// two writes. A waiter reads two objects each time that it asks, which is twice a second, with each
// poll, which is once or twice in a tick, and after each change of its key that the engine tells of
// (Watcher). It writes about once in ten ticks. While keys are in use, one process writes the clock
// with each tick, and each other one reads it.
//
// The queue of a key is bounded (Options.MaxWaiters), because each step of the key writes all of
// it. For the same reason records are small (Options.MaxObject). The store is for locks, leaders
// and jobs that must not overlap; the answers of a busy API belong in a database.
package casstore
