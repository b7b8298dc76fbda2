package main

import "time"

// Cost is what something costs a database: once, or each second.
type Cost struct {
	// Calls is how many commands or statements it is sent, as it counts them itself
	// (see each store); transactions for SQLite, which is sent nothing.
	Calls float64
	// In and Out are the bytes that it is sent and that it sends, without those of TCP
	// and TLS.
	In, Out float64
	// Log is the bytes that it writes to its log, which is what its disk, and its
	// replicas, have to do. 0 where it keeps none.
	Log float64
	// Notices is how many messages it sends unasked.
	Notices float64
	// Read is the bytes that it goes through for what it sends.
	Read float64
}

// Plus returns the sum of the costs.
func (c Cost) Plus(others ...Cost) Cost {
	for _, d := range others {
		c.Calls += d.Calls
		c.In += d.In
		c.Out += d.Out
		c.Log += d.Log
		c.Notices += d.Notices
		c.Read += d.Read
	}
	return c
}

// Times returns n times the cost.
func (c Cost) Times(n float64) Cost {
	return Cost{Calls: n * c.Calls, In: n * c.In, Out: n * c.Out, Log: n * c.Log, Notices: n * c.Notices, Read: n * c.Read}
}

// Shape is how large what is asked about is, in bytes.
type Shape struct {
	Key   int // of a key's namespace and name
	Owner int // of the text that says who claims: "HOST PID LABEL"
	Data  int // of a record
}

// Store is what a backend's costs are. What a method returns without saying so is for
// one call that the store is made by the client, with all that follows from it.
type Store interface {
	// Name is what people call the backend.
	Name() string

	// Claim takes n keys that nobody holds or waits for; Renew, Release and Keep are the
	// call that makes n such leases last longer, ends them, or ends them with a record.
	Claim(s Shape, n int) Cost
	Renew(s Shape, n int) Cost
	Release(s Shape, n int) Cost
	Keep(s Shape, n int) Cost
	// Replay is a claim of n keys, which records answer.
	Replay(s Shape, n int) Cost

	// Join takes a place in a queue of so many, and Ask keeps it.
	Join(s Shape, queue int) Cost
	Ask(s Shape, queue int) Cost
	// HandOver ends a lease for which so many wait, until the next of them knows that it
	// is its turn.
	HandOver(s Shape, queue int) Cost
	// Job reserves a place, redeems it when its turn has come, and ends that lease.
	Job(s Shape) Cost

	// Polls is what a process costs each second, beside its Asks, while so many wait in
	// it of whom the nearest has so many before it.
	Polls(s Shape, waiting, ahead int) Cost
	// Idle is what a process costs each second that has so many connections and does
	// nothing, when it looks that often for what has ended (Options.PruneEvery).
	Idle(connections float64, prune time.Duration) Cost
	// Sweep is what it costs to go through so many records, in search of what has ended.
	// One process does it once in SweepEvery.
	Sweep(s Shape, records int) Cost

	// Connections is how many connections a process has at least and at most, when
	// somebody has waited in it.
	Connections() (least, most int)
	// Limit is how many connections a server takes as it comes, and 0 where there is
	// no such thing.
	Limit() int

	// Record, Lease and Place are how many bytes the backend keeps for each: what is
	// written, the index and the room that is lost.
	Record(s Shape) float64
	Lease(s Shape) float64
	Place(s Shape) float64
}

// Stores are all the backends, in the order of the tables.
func Stores() []Store { return []Store{Memory{}, SQLite{}, Redis{}, Postgres{}, MySQL{}} }

// SweepEvery is how often all keys are gone through: sweepEvery in pgstore/prune.go and
// mysqlstore/prune.go.
const SweepEvery = time.Minute

// SweepPause is how long a process that does so leaves the server alone after each step:
// prunePause.
const SweepPause = 5 * time.Millisecond

// PruneEvery is how often a process looks for what has ended, as it comes:
// Options.PruneEvery of pgstore, mysqlstore and sqlitestore.
const PruneEvery = 10 * time.Second

// perSecond is how often something happens in a second that does so once in d.
func perSecond(d time.Duration) float64 { return float64(time.Second) / float64(d) }

// runs is how many calls n elements make of which one has at most so many.
func runs(n, most int) int { return (n + most - 1) / most }
