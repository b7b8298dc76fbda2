package main

import "time"

// Fleet is some processes of one application, all alike, and what they do.
type Fleet struct {
	Processes int
	Shape     Shape
	// Trip is how long a call of the store takes.
	Trip time.Duration

	// Held is how many leases each process holds all the time, of which each lasts TTL
	// without being renewed.
	Held int
	TTL  time.Duration

	// Requests is how many idempotent requests each process has in a second, of which
	// that share was made before; what they were answered is kept for Retention.
	Requests, Duplicates float64
	Retention            time.Duration

	// Waiting is how many callers of each process want one key that all want, and
	// Section how long each of them has it.
	Waiting int
	Section time.Duration
}

// Ordinary is a fleet of services as many are: each process has a request a second
// with an answer of 1 kB, of which a tenth is retried, is the leader in one thing, and has
// one caller that wants what all want.
func Ordinary(processes int) Fleet {
	return Fleet{
		Processes: processes, Shape: Shape{Key: 36, Owner: 40, Data: 1000}, Trip: time.Millisecond,
		Held: 1, TTL: 30 * time.Second,
		Requests: 1, Duplicates: 0.1, Retention: 24 * time.Hour,
		Waiting: 1, Section: 10 * time.Millisecond,
	}
}

// all is n processes' worth.
func (f Fleet) all(n float64) float64 { return n * float64(f.Processes) }

// Idle is what the fleet costs each second that does nothing.
func (f Fleet) Idle(s Store) Cost {
	least, _ := s.Connections()
	return s.Idle(float64(least), PruneEvery).Times(f.all(1))
}

// Renewals is what the leases cost each second that are held.
func (f Fleet) Renewals(s Store) Cost {
	calls, each := Renewals(f.Held, f.TTL)
	return s.Renew(f.Shape, int(each+0.5)).Times(f.all(calls))
}

// Work is what the requests cost each second.
func (f Fleet) Work(s Store) Cost {
	first, replays := Once(f.Requests, f.Duplicates)
	call := func(elements float64, of func(Shape, int) Cost) Cost {
		calls, each := Batched(elements, f.Trip)
		return of(f.Shape, max(1, int(each+0.5))).Times(f.all(calls))
	}
	return call(first, s.Claim).Plus(call(first, s.Keep), call(replays, s.Replay))
}

// Records is how many answers are kept.
func (f Fleet) Records() float64 {
	first, _ := Once(f.Requests, f.Duplicates)
	return f.all(first) * f.Retention.Seconds()
}

// Sweep is what it costs each second to look through them, and how long it takes to do so
// once: one process of the fleet does it, step by step, and begins again a while after it
// has come to the end.
func (f Fleet) Sweep(s Store) (c Cost, takes time.Duration) {
	c = s.Sweep(f.Shape, int(f.Records()))
	takes = time.Duration(c.Calls) * SweepPause
	return c.Times(perSecond(max(SweepEvery, takes))), takes
}

// Queue is how many wait for the key that all want.
func (f Fleet) Queue() int { return max(0, f.Processes*f.Waiting-1) }

// Waits is what those cost each second who wait for it, while nothing moves.
func (f Fleet) Waits(s Store) Cost {
	c := s.Ask(f.Shape, f.Queue()).Times(Asks(f.Queue()))
	for p := range f.Processes {
		if p*f.Waiting < f.Queue() {
			c = c.Plus(s.Polls(f.Shape, f.Waiting, p*f.Waiting))
		}
	}
	return c
}

// Moves is what it costs each second that the key goes from one to the next, each of
// whom comes back afterwards.
func (f Fleet) Moves(s Store) Cost {
	if f.Queue() == 0 {
		return Cost{}
	}
	return s.HandOver(f.Shape, f.Queue()).Plus(s.Join(f.Shape, f.Queue())).Times(perSecond(f.Section + f.Trip))
}

// Fit is how many processes a server has connections for, as it comes, when all of a
// process's connections are in use and when as few as possible are.
func Fit(s Store) (least, most int) {
	few, many := s.Connections()
	if s.Limit() == 0 {
		return 0, 0
	}
	return s.Limit() / many, s.Limit() / few
}

// Crowd is how many can wait for one key of a store whose row they write each time that
// they ask, when that takes so long: beyond that their places run out before they have
// been asked for again.
func Crowd(commit time.Duration) int {
	asks := perSecond(commit)
	near := farAhead * perSecond(askNear)
	return farAhead + int((asks-near)/perSecond(askFar))
}
