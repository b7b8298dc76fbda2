// Package redisstore keeps leases, queues and records on Redis, or Valkey: one
// server, a master that sentinels watch, or a Cluster. It is the store for
// several hosts that have a Redis already.
//
//	store, err := redisstore.Open(ctx, "redis://cache.internal", nil)
//
// New makes a Store on a rueidis client that a program has anyway.
//
// Each verb is one Lua script and one round trip, whatever it finds: it looks the
// record up, takes the lease and joins the queue, or ends the lease, writes the
// record and grants the next waiter, in one step that nothing else comes between.
// Many elements are one run of the script.
//
// # A key
//
// What ends by itself as time passes is put down by whoever asks next.
//
//	         Claim                     Settle Release, Keep
//	free ───────────▶ held ───────────────────────────────▶ free, or granted
//	                  ▲  │                                  to the next place
//	queued ── turn ───┘  │
//	  │      is told,    │ the lease runs out, or Settle Abandon
//	  │      or asks     ▼
//	  ▼                 abandoned: the next is granted as attempt n+1
//	gone, when its      unknown (AtMostOnce): nobody is, until ForceRelease, Forget
//	Stay is over        or Resolve
//
// The script that frees a key publishes the grant to the process of the next
// waiter. If nobody listens there, that waiter is dead or cut off, and the one
// behind it is granted instead, in the same script. A process subscribes when
// one of its claims waits first, over one connection. A message that is lost costs
// time and nothing else: waiters ask again by themselves.
//
// # Time and fences
//
// Everything ends by the server's clock (TIME). Fences are the highest one given
// before plus 1, or that clock in microseconds if it is higher: they rise also
// when the server has lost its data. On a Cluster each of 4,096 buckets of keys
// has its own.
package redisstore
