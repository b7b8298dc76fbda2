// Package redisstore keeps leases, queues and records on Redis or Valkey: one server, a
// master with sentinels, or a Cluster. It is a store for several hosts.
//
//	store, err := redisstore.Open(ctx, "redis://cache.internal", nil)
//
// New makes a Store on a rueidis client that the program already has.
//
// Each verb is one Lua script and one round trip. The script looks the record up, takes
// the lease and joins the queue; or it ends the lease, writes the record and grants the
// next waiter. Each is one atomic step. One script call handles many elements.
//
// # A key
//
// The next script that runs on a key records what has expired since.
//
//	         Claim                     Settle Release, Keep
//	free ───────────▶ held ───────────────────────────────▶ free, or granted
//	                  ▲  │                                  to the next place
//	queued ─ pushed ──┘  │
//	  │      grant, or   │ the lease runs out, or Settle Abandon
//	  │      asks again  ▼
//	  ▼                 abandoned: the next grant is attempt n+1
//	removed, when its   unknown (AtMostOnce): no grant until ForceRelease, Forget
//	PlaceTTL is over        or Resolve
//
// The script that frees a key publishes the grant to the process of the next waiter. If
// no process listens on that channel, the waiter is dead or cut off, and the same script
// grants the waiter behind it. A process subscribes when one of its claims waits for the
// first time, over one connection. A lost message costs time only, because waiters ask
// again by themselves.
//
// # Time and fences
//
// Everything ends by the server's clock (TIME). A fence is the highest fence so far plus
// 1, or that clock in microseconds if it is higher. So fences rise even after the server
// has lost its data. On a Cluster each of 4,096 buckets of keys has its own fence.
package redisstore
