package memstore

import (
	"cmp"
	"slices"
)

// advance notices what has expired at a key, and wakes the next waiter. Every step on a key
// begins with it.
func (sh *shard) advance(e *entry, now instant) {
	if e.held > 0 && e.soonest <= now {
		sh.expireLeases(e, now)
	}
	if r := e.record; r != nil && r.until <= now {
		sh.dropRecord(e)
	}
	if e.abandoned != nil && e.forgotten() <= now {
		sh.clean(e)
	}
}

// finish ends every step on a key. It removes an idle entry, and sets the timers for all
// others.
func (sh *shard) finish(e *entry, now instant) {
	if q := e.queue; q != nil && q.count > 0 && !e.unknown() {
		q.arm(sh.change(e, now), now)
	}
	if q := e.queue; q != nil {
		if q.count == 0 {
			sh.dropQueue(e)
		} else {
			q.trim()
		}
	}
	if e.idle() {
		sh.remove(e)
		return
	}
	sh.schedule(e)
}

// change returns when something expires that can make it a waiter's turn.
func (sh *shard) change(e *entry, now instant) instant {
	next := never
	if e.held > 0 {
		next = e.soonest
	}
	p, w := e.queue.front(now)
	switch {
	case w != nil:
		next = min(next, w.until)
	case p != nil:
		next = min(next, p.holdEnd(e.queue))
	}
	return next
}

// expireLeases abandons the leases that have expired, in the order in which they did.
func (sh *shard) expireLeases(e *entry, now instant) {
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

// abandon ends a lease, at that instant, as if its holder had crashed. The last abandoned
// lease has the count of them and the progress that was saved last.
func (sh *shard) abandon(e *entry, l *attempt, then instant) {
	e.removeLease(l)
	sh.leavePlace(e, l)
	l.until, l.number, l.inherited = then, 1, nil
	if last := e.abandoned; last != nil {
		l.number = last.number + 1
		if l.progress == nil {
			l.progress, last.progress = last.progress, nil
		}
		sh.drop(last)
	}
	e.abandoned = l
	if e.unknown() {
		for w := range e.queue.waiters() {
			sh.wake(w.token)
		}
	}
}

// clean forgets the abandoned leases.
func (sh *shard) clean(e *entry) {
	if e.abandoned != nil {
		sh.drop(e.abandoned)
		e.abandoned = nil
	}
}

// serve wakes the waiter in front if it can have the key. It is called whenever something was
// freed, and after a grant, because there may be more permits.
func (sh *shard) serve(e *entry, now instant) {
	if e.queue == nil || e.unknown() {
		return
	}
	if _, w := e.queue.front(now); w != nil && !w.woken && e.hasRoom(w.permits, w.weight) {
		w.woken = true
		sh.wake(w.token)
	}
}
