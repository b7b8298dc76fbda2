package memstore

import (
	"strings"

	"github.com/dibs-go/dibs"
)

// claim answers one valid claim.
func (sh *shard) claim(c *dibs.Claim, a *dibs.Answer, now instant) {
	e := sh.entries[c.Key]
	if e == nil {
		if c.Mode == dibs.Look {
			a.State = dibs.Free
			return
		}
		if e = sh.add(c.Key); e == nil {
			a.Err = errTooManyKeys
			return
		}
	} else {
		sh.advance(e, now)
	}
	sh.ask(e, c, a, now)
	sh.finish(e, now)
}

// ask answers a claim for the key of an entry.
func (sh *shard) ask(e *entry, c *dibs.Claim, a *dibs.Answer, now instant) {
	if l := e.holder(c.Token); l != nil {
		switch c.Mode {
		case dibs.Look:
			a.State = dibs.Free
			return
		case dibs.Try, dibs.Queue:
			e.prolong(l, now.after(c.TTL))
		}
		granted(a, l)
		return
	}
	var front, own, p *place
	if e.queue != nil {
		front, _ = e.queue.front(now)
		own = e.queue.place(c.Token, now)
		if p = own; p == nil && !c.From.IsZero() {
			if p = e.queue.place(c.From, now); p != nil && !(p.reserved && p.token == c.From) {
				p = nil
			}
		}
	}
	a.Queued = p != nil
	if e.answers(c, a, now) {
		if own != nil && c.Mode != dibs.Look && a.State != dibs.Unknown {
			e.queue.giveUpToken(own, c.Token)
			sh.serve(e, now)
		}
		return
	}
	if c.Mode == dibs.Reserve {
		if p = sh.reserve(e, own, c, a, now); p != nil {
			e.heldBy(p, front, a, now)
		}
		return
	}
	room := e.hasRoom(int32(c.Permits), int32(c.Weight))
	switch turn := !front.before(p) && (p == nil || p.lease == nil); {
	case turn && room && c.Mode == dibs.Look:
		a.State = dibs.Free
		return
	case turn && room:
		sh.grant(e, own, p, c, now)
		granted(a, e.leases)
		sh.serve(e, now)
		return
	case c.Mode == dibs.Look:
	case room && front.before(p) && front.reserved && front.waiters == nil && e.queue.free == never:
		e.queue.free = now
	}
	if own != nil && c.Mode != dibs.Look {
		if w := own.waiter(c.Token); w != nil {
			w.woken = false
		}
	}
	if c.Mode == dibs.Queue {
		if p = sh.wait(e, own, p, c, a, now); p == nil {
			return
		}
	}
	e.heldBy(p, front, a, now)
}

// answers gives the answers that do not depend on the claim's turn, and reports whether it
// gave one.
func (e *entry) answers(c *dibs.Claim, a *dibs.Answer, now instant) bool {
	accepted := e.record.accepts(c.MaxAge, now)
	switch {
	case e.differs(c) || accepted && e.record.fingerprint.Differs(c.Fingerprint):
		a.State = dibs.Mismatch
	case accepted:
		a.State = dibs.Done
		a.Record = dibs.Record{
			Data: e.record.data,
			Age:  e.record.written.until(now),
			Left: now.until(e.record.until),
		}
	case e.unknown():
		a.State, a.ID = dibs.Unknown, e.abandoned.token.ID()
	default:
		return false
	}
	a.Queued = false
	return true
}

// place returns the token's live place, or nil.
func (q *queue) place(t dibs.Token, now instant) *place {
	p := q.find(t)
	if p != nil {
		if _, gone := q.expire(p, now); gone || !p.has(t) {
			return nil
		}
	}
	return p
}

// reserve takes a reserved place, or prolongs it. Without room it answers so and returns nil.
func (sh *shard) reserve(e *entry, own *place, c *dibs.Claim, a *dibs.Answer, now instant) *place {
	p := own
	if p == nil {
		if sh.crowded(e, a, now) {
			return nil
		}
		p = e.queue.add()
		e.queue.reserve(p, c.Token)
	}
	q := e.queue
	p.owner = owner(c)
	p.until, p.hold, p.asked = now.after(c.Stay), c.Hold, now
	q.lasts(p.until)
	return p
}

// wait makes a token wait at its place, at the place p that it claims from, or at the end.
// Without room it answers so and returns nil.
func (sh *shard) wait(e *entry, own, p *place, c *dibs.Claim, a *dibs.Answer, now instant) *place {
	var w *attempt
	if own != nil {
		w = own.waiter(c.Token)
	}
	if w == nil {
		if p == nil {
			if sh.crowded(e, a, now) {
				return nil
			}
			p = e.queue.add()
		}
		w = sh.unusedAttempts.get()
		w.token = c.Token
		e.queue.join(p, w)
	}
	w.adopt(c)
	w.until = now.after(c.Stay)
	e.queue.lasts(w.until)
	return p
}

// crowded reports whether there is no room for one more place, and answers so.
func (sh *shard) crowded(e *entry, a *dibs.Answer, now instant) bool {
	q, most := sh.queueOf(e), sh.store.options.MaxWaiters
	if q.count >= most {
		q.expireAll(now, most)
	}
	if q.count >= most {
		*a = dibs.Answer{Err: errQueueFull}
		return true
	}
	return false
}

// giveUp ends the token's wait or its reservation at its place.
func (q *queue) giveUpToken(p *place, t dibs.Token) {
	if w := p.waiter(t); w != nil {
		q.leave(w)
		return
	}
	q.giveUp(p)
}

// grant grants the key to a claim, at the place p if it is not nil. own is the place at which
// the claim's own token waits.
func (sh *shard) grant(e *entry, own, p *place, c *dibs.Claim, now instant) {
	var l *attempt
	if own != nil {
		l = own.waiter(c.Token)
	}
	if l == nil {
		l = sh.unusedAttempts.get()
	} else if gone := e.queue.leave(l); gone {
		p = nil
	}
	l.adopt(c)
	l.fence = sh.store.nextFence(now)
	l.number, l.inherited = 1, nil
	if e.abandoned != nil {
		l.number, l.inherited = e.abandoned.number+1, e.abandoned.progress
	}
	l.since, l.until = now, now.after(c.TTL)
	if l.place = p; p != nil {
		p.lease = l
		if c.Hold > 0 {
			p.hold = c.Hold
		}
	}
	if e.queue != nil {
		e.queue.free = never
	}
	e.addLease(l)
}

// adopt copies what an attempt needs of a claim.
func (w *attempt) adopt(c *dibs.Claim) {
	w.token = c.Token
	w.fingerprint = c.Fingerprint
	w.atMostOnce = c.AtMostOnce
	w.maxAge = c.MaxAge
	w.permits, w.weight = int32(c.Permits), int32(c.Weight)
	w.owner = owner(c)
}

// owner returns the claim's owner, cut to the length that stores keep.
func owner(c *dibs.Claim) dibs.Owner {
	if len(c.Owner.Host)+len(c.Owner.Label) > dibs.MaxOwner {
		return dibs.ParseOwner(strings.Clone(c.Owner.String()))
	}
	return c.Owner
}

// granted answers the holder of a lease.
func granted(a *dibs.Answer, l *attempt) {
	a.State, a.Queued = dibs.Granted, false
	a.Fence, a.Attempt, a.Progress = l.fence, l.number, l.inherited
}

// heldBy answers a token that cannot have the key. p is its place, or nil.
func (e *entry) heldBy(p, front *place, a *dibs.Answer, now instant) {
	a.State, a.Queued = dibs.Held, p != nil
	a.Left = e.left(now)
	if front.before(p) {
		a.Ahead = e.queue.ahead(p)
	}
}
