package main

import "time"

// Postgres is what pgstore costs. A call is a statement that is sent, as
// pg_stat_statements counts them at the top; each is a transaction of its own.
type Postgres struct{}

const (
	pgMost       = 256                             // pgstore/store.go, Batching: elements of one call
	pgSweep      = 32                              // pgstore/prune.go, sweepPages
	pgPing       = 5 * time.Second                 // pgstore/listen.go, pingGap, of who listens
	pgChannel    = len("dibs_0123456789abcdef")    // pgstore/listen.go, attend
	pgGrant      = 32 + len(":1234567890123456:1") // sql/queue.sql, pass_on: a token and its grant
	pgAnswers    = 11 * 19                         // claimSQL's columns in a description: 18 bytes and an end each
	pgAnswerCols = len("istatefenceattemptremainsaheadqueuedidleagepermitsdata")

	// What stands around the values of a message; see the protocol's documentation.
	pgArray    = 20         // pgstore/wire.go, arrayHeader
	pgAround   = 7 + 10 + 5 // Describe, Execute and Sync
	pgFinish   = 5 + 14 + 6 // BindComplete, CommandComplete, ReadyForQuery
	pgDescribe = 7          // RowDescription without its columns
	pgRow      = 7          // DataRow without its columns
)

// Name implements Store.
func (Postgres) Name() string { return "PostgreSQL" }

// statement is a call of a prepared function about n elements: arrays with so many
// bytes for each element (-1: NULL), and other parameters beside them.
func (Postgres) statement(name string, n int, arrays, others []int, description, row int) Cost {
	var c Cost
	for n > 0 {
		m := min(n, pgMost)
		in := 1 + 4 + 1 + len("public.dibs_"+name) + 1 + 2 + 2 + 2 + 2 + 2 + pgAround
		for _, a := range arrays {
			in += 4 + pgArray + m*(4+max(a, 0))
		}
		for _, o := range others {
			in += 4 + max(o, 0)
		}
		c = c.Plus(Cost{Calls: 1, In: float64(in), Out: float64(pgFinish + pgDescribe + description + m*(pgRow+row))})
		n -= m
	}
	return c
}

// claim is a call of n claims that are answered with so many bytes of values each.
func (p Postgres) claim(s Shape, n, redeems, process, values int) Cost {
	return p.statement("claim", n, []int{1 + s.Key, 2, 16, redeems, 8, 8, 8, 4, 8, 1, -1, s.Owner},
		[]int{process, 1, 4, 1}, pgAnswers+pgAnswerCols, 11*4+values)
}

// verb is a call of n renewals or settlements.
func (p Postgres) verb(name string, n int, arrays ...int) Cost {
	return p.statement(name, n, arrays, nil, len("dibs_"+name)+19, 4+4)
}

// What is written to the log, measured at the server without full pages: a row's new
// version (with what the index needs when the row is new) and a commit.
const (
	pgCommitLog  = 46  // a commit, and its flush
	pgClaimLog   = 235 // a new row of dibs_key, its entry in the index, its lock
	pgUpdateLog  = 170 // a version of it on its page
	pgRecordLog  = 390 // one with a record, beside its data and the key in the index
	pgWaiterLog  = 380 // a row of dibs_waiter with two entries in indexes
	pgWaitersLog = 110 // a version of it
)

// Claim implements Store.
func (p Postgres) Claim(s Shape, n int) Cost {
	c := p.claim(s, n, -1, -1, 4+2+8+4)
	c.Log = float64(runs(n, pgMost)*pgCommitLog + n*(pgClaimLog+2*s.Key+s.Owner))
	return c
}

// Renew implements Store.
func (p Postgres) Renew(s Shape, n int) Cost {
	c := p.verb("renew", n, 1+s.Key, 16, 8, -1)
	c.Log = float64(runs(n, pgMost)*pgCommitLog + n*pgUpdateLog)
	return c
}

// Release implements Store.
func (p Postgres) Release(s Shape, n int) Cost {
	c := p.verb("settle", n, 1+s.Key, 16, -1, 2, 8, -1)
	c.Log = float64(runs(n, pgMost)*pgCommitLog + n*pgUpdateLog)
	return c
}

// Keep implements Store.
func (p Postgres) Keep(s Shape, n int) Cost {
	c := p.verb("settle", n, 1+s.Key, 16, -1, 2, 8, s.Data)
	c.Log = float64(runs(n, pgMost)*pgCommitLog + n*(pgRecordLog+4*s.Key/5+s.Data))
	return c
}

// Replay implements Store.
func (p Postgres) Replay(s Shape, n int) Cost { return p.claim(s, n, -1, -1, 4+2+8+8+s.Data) }

// pgHeld is the values of an answer to one who waits.
const pgHeld = 4 + 2 + 8 + 8 + 4 + 1 + 1

// Join implements Store.
func (p Postgres) Join(s Shape, _ int) Cost {
	c := p.claim(s, 1, -1, 8, pgHeld)
	c.Log = float64(pgCommitLog + pgWaiterLog + 3*s.Key + s.Owner)
	return c
}

// Ask implements Store: the place is written again.
func (p Postgres) Ask(s Shape, _ int) Cost {
	c := p.claim(s, 1, -1, 8, pgHeld)
	c.Log = float64(pgCommitLog + pgWaitersLog + s.Key + s.Owner)
	return c
}

// HandOver implements Store.
func (p Postgres) HandOver(s Shape, _ int) Cost {
	c := p.Release(s, 1)
	c.Out += float64(1 + 4 + 4 + pgChannel + 1 + pgGrant + 1)
	c.Notices = 1
	c.Log += 65 // the place goes
	return c
}

// Job implements Store.
func (p Postgres) Job(s Shape) Cost {
	return p.claim(s, 1, -1, -1, pgHeld).Plus(p.claim(s, 1, 16, -1, 4+2+8+4), p.verb("settle", 1, 1+s.Key, 16, -1, 2, 8, -1),
		Cost{Log: float64(1450 + 5*s.Key + 2*s.Owner)})
}

// Idle implements Store: what has ended is looked for, and somebody asked whether it is
// time to go through all keys; who listens asks whether the server is there.
func (Postgres) Idle(_ float64, prune time.Duration) Cost {
	look := Cost{Calls: 2, In: 300, Out: 120}
	ping := Cost{Calls: 1, In: 13, Out: 11}
	return look.Times(perSecond(prune)).Plus(ping.Times(perSecond(pgPing)))
}

// Polls implements Store: nobody has to who can listen.
func (Postgres) Polls(Shape, int, int) Cost { return Cost{} }

// Connections implements Store: one for claims and one for what ends them stay open;
// there are up to four of each, and one that listens.
func (Postgres) Connections() (least, most int) { return 2 + 1, 8 + 1 }

// Limit implements Store: max_connections.
func (Postgres) Limit() int { return 100 }

// Record implements Store: a row of dibs_key, on pages that are filled to 60 %, and
// entries in two indexes.
func (Postgres) Record(s Shape) float64 { return float64(230+s.Key+s.Data)*1.2 + float64(60+s.Key) }

// Lease implements Store.
func (Postgres) Lease(s Shape) float64 { return float64(130+s.Key+s.Owner)/0.6 + float64(30+s.Key) }

// Place implements Store.
func (Postgres) Place(s Shape) float64 { return float64(150+s.Key+s.Owner)/0.7 + float64(90+2*s.Key) }

// Sweep implements Store: the pages of dibs_key are gone through on the server, with the
// records that are on them, so many a statement.
func (p Postgres) Sweep(s Shape, records int) Cost {
	statements := float64(records) * p.Record(s) / 8192 / pgSweep
	return Cost{Calls: 1, In: 170, Out: 110}.Times(1 + statements).Plus(Cost{Read: float64(records) * p.Record(s)})
}

// Wakes is how many of the server's processes a hand-over wakes, when so many processes
// listen: PostgreSQL signals all who listen in the database, whatever their channel
// (SignalBackends in its async.c). A process listens from the first time that somebody
// in it waits until its store is closed.
func Wakes(listening int) float64 { return float64(listening) }

// PolledPostgres is PostgreSQL behind a transaction pooler, through which nobody can
// listen.
type PolledPostgres struct{ Postgres }

const (
	pgSlowPoll = 50 * time.Millisecond // pgstore/poll.go, slowPoll
	pgMoment   = time.Millisecond      // what a look takes
)

// Name implements Store.
func (PolledPostgres) Name() string { return "PostgreSQL, pooled" }

// Polls implements Store, for those who have waited for a while: in the first second they
// look up to 25 times as often. One statement asks for all.
func (p PolledPostgres) Polls(s Shape, waiting, _ int) Cost {
	look := p.statement("turns", waiting, []int{1 + s.Key, 16}, nil, len("ikind")+2*19, 2*4+4+2)
	return look.Times(perSecond(pgSlowPoll + pgMoment))
}

// HandOver implements Store: nobody is told, and who has looked asks.
func (p PolledPostgres) HandOver(s Shape, queue int) Cost {
	return p.Release(s, 1).Plus(p.Ask(s, queue))
}

// Connections implements Store: of the pooler, not of the server.
func (PolledPostgres) Connections() (least, most int) { return 2, 8 }
