package jobs

import "slices"

// Pool is the workers of this process that take the jobs of one queue. Those that wait for
// their turn there, and one that runs, take half of the workers at most, for each Mutex: the
// other half is for other keys. So of three or four workers one may have a job that waits,
// and of one or two none: it comes back when its turn has come.
type Pool struct {
	// Name tells the pools of a process apart. Two without a name, with as many workers,
	// share their seats.
	Name string
	// Workers is how many there are; nobody checks that. Where it changes, it is another
	// Pool from then on, so let it change seldom. 0 or less: it is not known, and
	// Options.Seats counts alone.
	Workers int
}

// room is the seats in a pool: those of its workers in which jobs may wait.
type room struct {
	seats int // how many there are
	extra int // and how many more for those who could not be back in time

	// What follows is under the lock of the lines.

	seated []*seat // those that wait
	coming int     // how many were called a moment ago and are not back
	hungry []*line // those that reach no farther than others would go for them
}

// room returns the seats in a pool. The caller has the lock.
func (l *lines) room(p Pool) *room {
	r := l.rooms[p]
	if r == nil {
		r = &room{seats: l.mutex.options.Seats, extra: l.mutex.options.Seats / 4}
		if p.Workers > 0 {
			most := (p.Workers - 1) / 2
			r.seats = min(r.seats, most)
			r.extra = min(r.extra, most-r.seats)
		}
		l.rooms[p] = r
	}
	return r
}

// forCalled is how many seats there are for jobs that this process makes runnable: half of
// them, as others come that another process has made runnable, and a queue gives many to one
// worker process at times. Who is sent away then can hardly be back in time.
func (r *room) forCalled() int { return r.seats - r.seats/2 }

// free returns for how many more jobs there are seats that can be made runnable. The caller
// has the lock.
func (r *room) free() int { return r.forCalled() - len(r.seated) - r.coming }

// mayCall reports whether one more may be made runnable for whom another one goes: not too
// many are on their way. The caller has the lock.
func (r *room) mayCall() bool { return r.coming < seatsFor*r.seats }

// starve has a line wait until there may be a seat for its first. The caller has the lock.
func (r *room) starve(of *line) {
	if of.hungry != r {
		of.sated()
		of.hungry = r
		r.hungry = append(r.hungry, of)
	}
}

// sated notes that a line does not wait for a seat any more. The caller has the lock.
func (of *line) sated() {
	if r := of.hungry; r != nil {
		r.hungry = slices.DeleteFunc(r.hungry, func(other *line) bool { return other == of })
		of.hungry = nil
	}
}

// tell tells so many lines that there may be a seat for their first. The caller has the lock.
func (r *room) tell(n int) {
	n = min(n, len(r.hungry))
	for _, of := range r.hungry[:n] {
		of.hungry = nil
		of.change()
	}
	r.hungry = slices.Delete(r.hungry, 0, n)
}

// seat tells as many of those who found no seat as there may be seats for now. One of which
// none is near enough passes it on; see next.
func (l *lines) seat(r *room) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.tell(max(r.free(), 1))
}
