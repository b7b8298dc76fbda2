package memstore

import (
	"cmp"
	"slices"
)

// advance lets time pass for a key, up to now: what is over is dead, and the next
// waiter is woken. Every look at a key starts with it.
func (sh *shard) advance(e *entry, now instant) {
	if e.held > 0 && e.soonest <= now {
		sh.runOut(e, now)
	}
	if r := e.record; r != nil && r.until <= now {
		sh.dropRecord(e)
	}
	if e.lost != nil && e.forgotten() <= now {
		sh.clean(e)
	}
}

// finish is how every step on a key ends: an idle one is forgotten, and for
// any other it is seen to that somebody looks at it again in time.
func (sh *shard) finish(e *entry, now instant) {
	if q := e.queue; q != nil && q.count > 0 && !e.unknown() {
		q.arm(sh.change(e, now), now)
	}
	if q := e.queue; q != nil {
		if q.count == 0 {
			sh.dropQueue(e)
		} else {
			q.settle()
		}
	}
	if e.idle() {
		sh.remove(e)
		return
	}
	sh.schedule(e, now)
}

// change returns when something happens by itself that waiters want to know.
func (sh *shard) change(e *entry, now instant) instant {
	next := never
	if e.held > 0 {
		next = e.soonest
	}
	p, w := sh.front(e.queue, now)
	switch {
	case w != nil:
		next = min(next, w.until)
	case p != nil:
		next = min(next, p.holdEnd(e.queue))
	}
	return next
}

// runOut abandons the leases that have run out, in the order in which they did.
func (sh *shard) runOut(e *entry, now instant) {
	soonest := never
	var few [4]*attempt
	over := few[:0]
	for a := e.leases; a != nil; a = a.next {
		if a.until > now {
			soonest = min(soonest, a.until)
		} else {
			over = append(over, a)
		}
	}
	slices.SortFunc(over, func(a, b *attempt) int {
		return cmp.Or(cmp.Compare(a.until, b.until), cmp.Compare(a.fence, b.fence))
	})
	for _, a := range over {
		sh.abandon(e, a, a.until)
	}
	e.soonest = soonest
	sh.serve(e, now)
}

// abandon ends a lease, then, as if its holder had crashed. The last one that was
// abandoned has the count of all, and the progress that was saved last.
func (sh *shard) abandon(e *entry, l *attempt, then instant) {
	e.removeLease(l)
	sh.leavePlace(e, l)
	l.until, l.number, l.inherited = then, 1, nil
	if last := e.lost; last != nil {
		l.number = last.number + 1
		if l.progress == nil {
			l.progress, last.progress = last.progress, nil
		}
		sh.drop(last)
	}
	e.lost = l
	if e.queue != nil && e.unknown() {
		for _, p := range e.queue.places[e.queue.head:] {
			if p == nil {
				continue
			}
			for w := p.waiters; w != nil; w = w.next {
				sh.wake(w.token)
			}
		}
	}
}

// clean forgets what was abandoned: a lease ended cleanly, or it is long ago.
func (sh *shard) clean(e *entry) {
	if e.lost != nil {
		sh.drop(e.lost)
		e.lost = nil
	}
}

// serve wakes the waiter in front if the key can be its. It is called whenever that
// may have become so, and when that waiter was granted, because there may be more
// permits.
func (sh *shard) serve(e *entry, now instant) {
	if e.queue == nil || e.unknown() {
		return
	}
	if _, w := sh.front(e.queue, now); w != nil && !w.woken && e.hasRoom(w.permits, w.weight) {
		w.woken = true
		sh.wake(w.token)
	}
}

// drop is the end of an attempt that is in no list any more.
func (sh *shard) drop(a *attempt) {
	if n := len(a.progress); n > 0 {
		sh.store.take(-n)
	}
	*a = attempt{}
	sh.attempts.put(a)
}
