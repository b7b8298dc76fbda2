package main

import "time"

// MySQL is what mysqlstore costs, on MariaDB. A call is a statement, as the server counts
// Questions: many go together in one message, and the messages are fewer.
type MySQL struct{}

const (
	myMost   = 256                    // mysqlstore/call.go, most
	myAtOnce = 72                     // mysqlstore/load.go, atOnce: places that are read with a key
	myRow    = 142                    // the bytes of one
	mySlow   = 8 * time.Millisecond   // mysqlstore/poll.go, slowPoll
	myPlace  = 3 * time.Millisecond   // perPlace
	myFar    = 300 * time.Millisecond // farPoll
	myMoment = 300 * time.Microsecond // what a look takes on a server that is near
	myWidth  = 320                    // the bytes of a row of dibs_key, beside its key
	mySweep  = 512                    // mysqlstore/prune.go, sweepRows
)

// Name implements Store.
func (MySQL) Name() string { return "MariaDB" }

// script is one message, in which there are so many statements, some bytes and others
// for each of n elements, and what comes back.
type script struct {
	calls, eachCalls int
	in, eachIn       int
	out, eachOut     int
	log, eachLog     int
}

func (x script) of(n int) Cost {
	var c Cost
	for n > 0 {
		m := min(n, myMost)
		c = c.Plus(Cost{
			Calls: float64(x.calls + m*x.eachCalls), In: float64(x.in + m*x.eachIn),
			Out: float64(x.out + m*x.eachOut), Log: float64(x.log + m*x.eachLog),
		})
		n -= m
	}
	return c
}

// Keys, tokens and owners are written in hexadecimal (mysqlstore/script.go, bytes).
func hexadecimal(n int) int { return len("x''") + 2*n }

// Claim implements Store.
func (MySQL) Claim(s Shape, n int) Cost {
	return script{
		calls: 5, // the clock, the fence, INSERT, the clock again, SELECT: mysqlstore/plain.go, claimPlain
		in:    1172, eachIn: 2*hexadecimal(1+s.Key) + hexadecimal(16) + hexadecimal(s.Owner) + 36,
		out: 1030, eachOut: 92 + s.Key,
		log: 120, eachLog: 207 + 2*s.Key + s.Owner,
	}.of(n)
}

// Renew implements Store.
func (MySQL) Renew(s Shape, n int) Cost {
	return script{
		calls: 6, // START, SELECT, the clock twice, UPDATE, COMMIT: renewPlain
		in:    477, eachIn: 2*hexadecimal(1+s.Key) + hexadecimal(17+s.Key) + 3,
		out: 944, eachOut: 92 + s.Key,
		log: 100, eachLog: 70 + s.Key,
	}.of(n)
}

// Release implements Store.
func (MySQL) Release(s Shape, n int) Cost {
	return script{
		calls: 6,
		in:    525, eachIn: 2*hexadecimal(1+s.Key) + hexadecimal(17+s.Key) + 3,
		out: 944, eachOut: 92 + s.Key,
		log: 110, eachLog: 230 + s.Key + s.Owner,
	}.of(n)
}

// Keep implements Store: an INSERT for each record, which is a parameter.
func (MySQL) Keep(s Shape, n int) Cost {
	return script{
		calls: 6, eachCalls: 1,
		in: 607, eachIn: 3*hexadecimal(1+s.Key) + hexadecimal(17+s.Key) + hexadecimal(16) + 196 + s.Data,
		out: 944, eachOut: 141 + s.Key,
		log: 350, eachLog: 478 + 4*s.Key + s.Data,
	}.of(n)
}

// Replay implements Store.
func (m MySQL) Replay(s Shape, n int) Cost {
	c := m.Claim(s, n)
	c.In += float64(70 * runs(n, myMost))
	c.Out += float64(19 + n*(2+s.Data))
	c.Log = 0
	return c
}

// queued is a call about a key for which so many wait: it is tried plainly first, and
// then the first places are read, with some more.
func queued(calls, in, log, queue int) Cost {
	return Cost{Calls: float64(calls), In: float64(in), Out: float64(4500 + myRow*min(queue, myAtOnce)), Log: float64(log)}
}

// Join implements Store.
func (MySQL) Join(s Shape, queue int) Cost { return queued(17, 3500+10*s.Key, 500, queue) }

// Ask implements Store.
func (MySQL) Ask(s Shape, queue int) Cost { return queued(17, 3400+10*s.Key, 300, queue) }

// HandOver implements Store.
func (MySQL) HandOver(s Shape, queue int) Cost { return queued(20, 3800+10*s.Key, 500, queue) }

// Job implements Store: three calls, each of which is tried plainly first.
func (MySQL) Job(s Shape) Cost {
	return Cost{Calls: 46, In: float64(9800 + 26*s.Key), Out: 13_100, Log: 7400}
}

// Idle implements Store: what has ended is looked for (1 statement), and whether it is
// time to go through all keys (begin, look, UPDATE, COMMIT, and two settings).
func (MySQL) Idle(_ float64, prune time.Duration) Cost {
	return Cost{Calls: 7, In: 712, Out: 443}.Times(perSecond(prune))
}

// Polls implements Store, for those who have waited for a while: in the first 0.3 s they
// look up to eight times as often.
func (MySQL) Polls(s Shape, waiting, ahead int) Cost {
	look := Cost{Calls: 3, In: float64(380 + 35*waiting + 2*s.Key), Out: float64(460 + 25*waiting)}
	if ahead > 0 { // who comes before is counted, one by one
		look = look.Plus(Cost{Calls: 1, In: 330, Out: 250})
	}
	each := max(mySlow, min(time.Duration(ahead)*myPlace, myFar)) + myMoment
	return look.Times(perSecond(each))
}

// Connections implements Store: up to four for claims, as many for what ends them, and
// one that polls. They stay open.
func (MySQL) Connections() (least, most int) { return 1 + 1 + 1, 8 + 1 }

// Limit implements Store: max_connections of MariaDB, and of MySQL.
func (MySQL) Limit() int { return 151 }

// Record implements Store: a row of dibs_key and one of dibs_record, with an index.
func (MySQL) Record(s Shape) float64 { return float64(myWidth+s.Key) + float64(80+2*s.Key+s.Data)*1.3 }

// Lease implements Store.
func (MySQL) Lease(s Shape) float64 { return float64(myWidth + s.Key + s.Owner) }

// Place implements Store.
func (MySQL) Place(s Shape) float64 { return float64(130+2*s.Key+s.Owner) * 1.3 }

// Sweep implements Store: all keys are sent to the process, so many in an answer.
func (MySQL) Sweep(s Shape, records int) Cost {
	return Cost{Calls: 1, In: 420, Out: 400}.Times(1 + float64(records)/mySweep).Plus(Cost{Out: float64(records * (44 + s.Key)), Read: float64(records * (myWidth + s.Key))})
}
