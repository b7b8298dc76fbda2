package memstore

import (
	"time"

	"github.com/dibs-go/dibs"
)

// advance lets time pass for a key, up to now: what has run out is dead, and
// what that frees is handed over. Every look at a key starts with it.
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
	if e.queue != nil {
		sh.handOver(e, now)
	}
}

// finish is how every step on a key ends: an idle one is forgotten, and for
// any other it is seen to that somebody looks at it again in time.
func (sh *shard) finish(e *entry, now instant) {
	if e.idle() {
		sh.remove(e)
		return
	}
	sh.schedule(e, now)
	if e.queue != nil && !e.unknown() {
		e.queue.arm(e.change(), now)
	}
}

// change returns when something happens by itself that those who wait want to
// know.
func (e *entry) change() instant {
	next := never
	if e.held > 0 {
		next = e.soonest
	}
	if e.held < e.permits {
		next = min(next, e.queue.first().until) // a reservation is in the way
	}
	return next
}

// runOut ends the leases that have run out.
func (sh *shard) runOut(e *entry, now instant) {
	soonest := never
	for a := e.leases; a != nil; {
		next := a.next
		switch {
		case a.until > now:
			soonest = min(soonest, a.until)
		case a.offered:
			// Its turn is over. Nobody did anything, so nothing was abandoned.
			e.removeLease(a)
			sh.drop(a)
		default:
			e.removeLease(a)
			sh.standAgain(e, a, a.until, now)
			sh.abandon(e, a, a.until)
		}
		a = next
	}
	e.soonest = soonest
}

// abandon notes that a lease ended, then, without being settled. It is in no
// list any more.
func (sh *shard) abandon(e *entry, a *attempt, then instant) {
	e.abandoned++
	a.until = then
	if a.progress == nil {
		a.progress = a.inherited // what it did not add to, it passes on
		sh.store.bytes.Add(int64(len(a.progress)))
	}
	sh.disinherit(a)
	if last := e.lost; last != nil && last.until > then {
		sh.drop(a)
	} else {
		if last != nil {
			sh.drop(last)
		}
		e.lost = a
	}
	if q := e.queue; q != nil && e.unknown() {
		for _, w := range q.places[q.head:] {
			if w != nil {
				sh.wake(w.token)
			}
		}
	}
}

// undo ends a lease, which is in no list any more, as if it had not been granted.
func (sh *shard) undo(e *entry, l *attempt) {
	if e.lost == nil && e.abandoned > 0 && l.told != nil {
		// Nobody came to a good end meanwhile, nor to a bad one.
		e.lost = l.told
		l.told, l.inherited = nil, nil
	}
	sh.drop(l)
}

// standAgain puts the place that a lease had taken, which ended then, back where
// it was.
func (sh *shard) standAgain(e *entry, l *attempt, then, now instant) {
	p := l.from
	if p == nil {
		return
	}
	l.from = nil
	p.until, p.called, p.pressed = then.after(p.stands), false, false
	if p.until <= now {
		sh.drop(p)
		return
	}
	sh.queueOf(e).rejoin(p)
}

// clean forgets what was abandoned: somebody came to a good end, or it is long
// ago.
func (sh *shard) clean(e *entry) {
	e.abandoned = 0
	if e.lost != nil {
		sh.drop(e.lost)
		e.lost = nil
	}
}

// handOver offers the key to those in front, as far as there are permits. A
// reserved place stops it. A queue that this empties is gone.
func (sh *shard) handOver(e *entry, now instant) {
	q := e.queue
	if q == nil {
		return
	}
	for q.waiting > 0 {
		a := q.first()
		if a.until <= now {
			q.remove(a)
			sh.drop(a)
			continue
		}
		if e.unknown() || e.held >= e.permits {
			return
		}
		if a.reserved {
			if !a.called {
				a.called = true
				sh.wake(a.token)
			}
			return
		}
		q.remove(a)
		sh.wake(a.token)
		if e.lost != nil && e.lost.fingerprint.Differs(a.fingerprint) {
			sh.drop(a) // it asks, and is told of the mismatch
			continue
		}
		sh.grant(e, a, now.after(dibs.Turn), now, time.Now())
		a.offered = true
	}
	sh.dropQueue(e)
}

// grant makes an attempt that is in no list a holder.
func (sh *shard) grant(e *entry, a *attempt, until, now instant, t time.Time) {
	a.fence = sh.store.nextFence(t)
	a.number = int(e.abandoned) + 1
	a.since, a.until = now, until
	if e.lost != nil && e.lost.progress != nil {
		a.inherited = e.lost.progress
		sh.store.bytes.Add(int64(len(a.inherited)))
	}
	e.addLease(a)
}

// takeUp is called when a holder knows of its grant: what was abandoned before
// is now its business.
func (e *entry) takeUp(l *attempt, s *Store) {
	if e.lost != nil {
		s.take(-len(l.inherited)) // it is told's, and counted there
		l.told, e.lost = e.lost, nil
	}
}

// disinherit takes from an attempt what it was told of those before it.
func (sh *shard) disinherit(a *attempt) {
	if a.told != nil {
		sh.drop(a.told)
	} else {
		sh.store.take(-len(a.inherited))
	}
	a.told, a.inherited = nil, nil
}
