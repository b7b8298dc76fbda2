package main

import (
	"strconv"
	"time"
)

// Redis is what redisstore costs on one server. A call is a command of a client's; those
// that scripts run are not counted. Redis keeps no log unless it is told to.
type Redis struct{}

const (
	redisMost    = 64 // redisstore/store.go, most: elements of one run of a script
	redisFence   = len("dibs:fence")
	redisChannel = len("dibs:wake:0123456789abcdef")
	redisClaim   = 95                      // redisstore/claim.go, append: a claim without its owner
	redisSettle  = 25                      // redisstore/settle.go, appendSettlement: without data
	redisPing    = time.Second             // redisstore/open.go, pingGap, for each connection that is idle
	redisCheck   = time.Second             // redisstore/ears.go, listenCheck, where somebody waits
	redisStamp   = len("1234567890123456") // a fence: the clock in µs
	redisTTL     = len("30000000")         // 30 s in µs
	redisKept    = len("86430001")         // that and a day, in ms
	redisGrant   = 16 + 12                 // redisstore/ears.go, hear: a token, its fence and its attempt
	redisRecord  = 65                      // lua/state.lua: what stands before a record's data
)

// Name implements Store.
func (Redis) Name() string { return "Redis" }

// bulk is how long a string of so many bytes is in Redis's protocol, and integer a
// number of so many digits.
func bulk(n int) int    { return len("$\r\n\r\n") + digits(n) + n }
func integer(n int) int { return len(":\r\n") + n }
func array(n int) int   { return len("*\r\n") + digits(n) }
func digits(n int) int  { return len(strconv.Itoa(n)) }

// redisName is how long the name of a key's state is: "dibs:{000}:NAMESPACE NAME:s".
func redisName(s Shape) int { return len("dibs:{000}: :s") + s.Key }

// script is a run of a script about n keys, with those arguments for each key, beside
// those before them. What comes back is answer for each.
func (Redis) script(s Shape, n int, before, each []int, answer int) Cost {
	var c Cost
	for n > 0 {
		m := min(n, redisMost)
		in := array(3+1+m+len(before)+m*len(each)) +
			bulk(len("EVALSHA")) + bulk(40) + bulk(digits(1+m)) + bulk(redisFence) + m*bulk(redisName(s))
		for _, b := range before {
			in += bulk(b)
		}
		for _, e := range each {
			in += m * bulk(e)
		}
		c = c.Plus(Cost{Calls: 1, In: float64(in), Out: float64(array(m) + m*answer)})
		n -= m
	}
	return c
}

// claim is a call of n claims that are answered so.
func (r Redis) claim(s Shape, n, channel, answer int) Cost {
	return r.script(s, n, []int{channel, 1, 1, len("100000")}, []int{redisClaim + s.Owner, redisKept}, answer)
}

// Claim implements Store.
func (r Redis) Claim(s Shape, n int) Cost { return r.claim(s, n, 0, integer(redisStamp)) }

// Renew implements Store.
func (r Redis) Renew(s Shape, n int) Cost {
	return r.script(s, n, []int{1}, []int{16, redisTTL, 1, 0}, integer(1))
}

// settle is a call of n settlements with so much data each.
func (r Redis) settle(s Shape, n, data int) Cost {
	return r.script(s, n, []int{1}, []int{redisSettle + data}, integer(1))
}

// Release implements Store.
func (r Redis) Release(s Shape, n int) Cost { return r.settle(s, n, 0) }

// Keep implements Store.
func (r Redis) Keep(s Shape, n int) Cost { return r.settle(s, n, s.Data) }

// Replay implements Store.
func (r Redis) Replay(s Shape, n int) Cost {
	return r.claim(s, n, 0, array(4)+integer(1)+bulk(s.Data)+integer(7)+integer(11))
}

// held is an answer to one who waits.
func (r Redis) held() int {
	return array(6) + integer(1) + integer(redisTTL) + integer(1) + integer(1) + integer(1) + integer(redisStamp)
}

// Join implements Store.
func (r Redis) Join(s Shape, _ int) Cost { return r.claim(s, 1, redisChannel, r.held()) }

// Ask implements Store.
func (r Redis) Ask(s Shape, _ int) Cost { return r.Join(s, 0) }

// HandOver implements Store: the settlement grants and publishes.
func (r Redis) HandOver(s Shape, _ int) Cost {
	push := array(3) + bulk(len("message")) + bulk(redisChannel) + bulk(redisGrant)
	return r.Release(s, 1).Plus(Cost{Out: float64(push), Notices: 1})
}

// Job implements Store.
func (r Redis) Job(s Shape) Cost {
	return r.claim(s, 1, 0, r.held()).Plus(r.claim(s, 1, 0, integer(redisStamp)), r.Release(s, 1))
}

// Idle implements Store: each connection sends PING, but for the one that subscribes. For
// that one another asks whether it counts, and sends no PING then.
func (r Redis) Idle(connections float64, _ time.Duration) Cost {
	each := Cost{Calls: 1, In: float64(array(1) + bulk(len("PING"))), Out: float64(len("+PONG\r\n"))}
	check := Cost{
		Calls: 1, In: float64(array(3) + bulk(len("PUBSUB")) + bulk(len("NUMSUB")) + bulk(redisChannel)),
		Out: float64(array(1) + bulk(redisChannel) + integer(1)),
	}
	return each.Times(max(0, connections-2) * perSecond(redisPing)).Plus(check.Times(perSecond(redisCheck)))
}

// Polls implements Store: nobody has to.
func (Redis) Polls(Shape, int, int) Cost { return Cost{} }

// Connections implements Store: rueidis spreads calls over up to four, and one
// subscribes.
func (Redis) Connections() (least, most int) { return 1 + 1, 4 + 1 }

// Limit implements Store: maxclients.
func (Redis) Limit() int { return 10_000 }

// Record implements Store: redisstore/README.md, Sizing.
func (Redis) Record(s Shape) float64 { return float64(170+redisName(s)+s.Data) * 1.1 }

// Lease implements Store.
func (Redis) Lease(s Shape) float64 { return float64(165 + redisName(s) + s.Owner) }

// Place implements Store.
func (Redis) Place(s Shape) float64 { return float64(300 + s.Owner) }

// Sweep implements Store: everything has an expiry.
func (Redis) Sweep(Shape, int) Cost { return Cost{} }
