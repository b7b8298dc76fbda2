package memstore

import (
	"strings"
	"time"

	"github.com/dibs-go/dibs"
)

// claim answers one valid claim.
func (sh *shard) claim(hash uint64, c *dibs.Claim, a *dibs.Answer, now instant, t time.Time) {
	e := sh.find(hash, c.Key)
	if e == nil {
		if c.Mode == dibs.Look {
			a.State = dibs.Free
			return
		}
		if e = sh.add(hash, c.Key); e == nil {
			a.Err = errTooManyKeys
			return
		}
	} else {
		sh.advance(e, now)
	}
	if c.Mode == dibs.Look {
		sh.look(e, c, a, now)
	} else {
		sh.ask(e, c, a, now, t)
	}
	sh.finish(e, now)
}

// ask answers a claim that is more than a look.
func (sh *shard) ask(e *entry, c *dibs.Claim, a *dibs.Answer, now instant, t time.Time) {
	if !e.agreed() {
		e.permits = int32(c.Permits) // the last agreement ended with those who made it
	}
	if l := e.holder(c.Token); l != nil {
		sh.again(e, l, c, a, now)
		return
	}
	if e.refuses(c, a, now) {
		if a.State == dibs.Mismatch || a.State == dibs.Done {
			sh.leave(e, c.Token, now) // it has its answer
		}
		return
	}
	p := sh.place(e, c.Token, now)
	if c.Mode != dibs.Reserve && e.turn(p) {
		if p != nil {
			e.queue.remove(p)
			p.maxAge, p.reserved, p.called = 0, false, false
		} else {
			p = sh.newAttempt()
		}
		p.adopt(c)
		sh.grant(e, p, now.after(c.TTL), now, t)
		sh.takeUp(e)
		granted(a, p)
		sh.handOver(e, now)
		return
	}
	if p == nil && c.Mode != dibs.Try {
		if p = sh.join(e, c, now); p == nil {
			a.Err = errQueueFull
			return
		}
	} else if p != nil && (c.Mode != dibs.Try || c.Place > 0) {
		p.until = now.after(c.Place)
		e.queue.stands(p)
	}
	if c.Mode != dibs.Try {
		// A Try leaves the place as it is: a reserved one is not offered to a
		// caller that does not wait for the offer.
		p.adopt(c)
		p.maxAge = c.MaxAge
		p.reserved = c.Mode == dibs.Reserve
	}
	e.waits(p, a, now)
}

// look answers what Try would find, and changes nothing.
func (sh *shard) look(e *entry, c *dibs.Claim, a *dibs.Answer, now instant) {
	if e.holder(c.Token) != nil {
		a.State = dibs.Free
		return
	}
	if e.refuses(c, a, now) {
		return
	}
	var p *attempt
	if e.queue != nil {
		if p = e.queue.find(c.Token); p != nil && p.until <= now {
			p = nil
		}
	}
	if !e.agreed() || e.turn(p) {
		a.State = dibs.Free
		return
	}
	e.waits(p, a, now)
}

// again answers a token that holds the key already, perhaps without knowing.
func (sh *shard) again(e *entry, l *attempt, c *dibs.Claim, a *dibs.Answer, now instant) {
	switch {
	case c.Mode != dibs.Reserve:
		if l.offered {
			l.adopt(c)
			l.offered = false
			sh.takeUp(e)
		}
		e.prolong(l, now.after(c.TTL))
	case l.offered:
		// Its turn came and it wants to keep the place instead: it is the
		// first, as before the offer.
		e.removeLease(l)
		if n := len(l.inherited); n > 0 {
			sh.store.take(-n)
		}
		*l = attempt{token: l.token, until: now.after(c.Place), maxAge: c.MaxAge, reserved: true, called: true}
		l.adopt(c)
		sh.queueOf(e).joinFirst(l)
		e.waits(l, a, now)
		return
	}
	granted(a, l)
}

// refuses answers a claim that is not for want of its turn, and reports whether
// it did.
func (e *entry) refuses(c *dibs.Claim, a *dibs.Answer, now instant) bool {
	accepted := e.record.accepts(c.MaxAge, now)
	switch {
	case e.agreed() && int(e.permits) != c.Permits:
		a.State, a.Permits = dibs.PermitsDiffer, int(e.permits)
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
		a.State, a.ID = dibs.Unknown, e.lost.token.ID()
	default:
		return false
	}
	return true
}

// turn reports whether it is the turn of the token with that place, or of one
// without if it is nil.
func (e *entry) turn(p *attempt) bool {
	return e.held < e.permits && (e.queue == nil || p != nil && p == e.queue.first())
}

// place returns the token's place, or nil if it has none.
func (sh *shard) place(e *entry, t dibs.Token, now instant) *attempt {
	if e.queue == nil {
		return nil
	}
	p := e.queue.find(t)
	if p != nil && p.until <= now {
		// It is not the first, or advance would have removed it; so the queue
		// does not end with it, and nobody's turn comes.
		e.queue.remove(p)
		sh.drop(p)
		return nil
	}
	return p
}

// leave takes the token out of the queue and reports whether it was there.
func (sh *shard) leave(e *entry, t dibs.Token, now instant) bool {
	p := sh.place(e, t, now)
	if p == nil {
		return false
	}
	e.queue.remove(p)
	sh.drop(p)
	sh.handOver(e, now)
	return true
}

// join gives the claim a place at the end, or returns nil when there are too
// many.
func (sh *shard) join(e *entry, c *dibs.Claim, now instant) *attempt {
	q := sh.queueOf(e)
	if most := sh.store.options.MaxWaiters; q.waiting >= most {
		sh.dropDead(e, now, most)
		if q.waiting >= most {
			return nil
		}
	}
	p := sh.newAttempt()
	p.token = c.Token
	p.until = now.after(c.Place)
	q.join(p)
	return p
}

// dropDead removes up to limit places that have run out, wherever they are,
// and returns how many. It looks at all of them only when one can have.
func (sh *shard) dropDead(e *entry, now instant, limit int) int {
	q := e.queue
	if q == nil || q.soonest > now {
		return 0
	}
	n := 0
	q.removeAll(
		func(a *attempt) bool { return a.until <= now && n < limit },
		func(a *attempt) {
			sh.drop(a)
			n++
		},
	)
	return n
}

// adopt takes over from a claim what an attempt is known by.
func (p *attempt) adopt(c *dibs.Claim) {
	p.token = c.Token
	p.fingerprint = c.Fingerprint
	p.atMostOnce = c.AtMostOnce
	p.owner = c.Owner
	if len(c.Owner.Host)+len(c.Owner.Label) > dibs.MaxOwner {
		p.owner = dibs.ParseOwner(strings.Clone(c.Owner.String()))
	}
}

// granted answers a holder.
func granted(a *dibs.Answer, l *attempt) {
	a.State = dibs.Granted
	a.Fence, a.Attempt, a.Progress = l.fence, l.number, l.inherited
}

// waits answers a token whose turn has not come; p is its place, if it has one.
func (e *entry) waits(p *attempt, a *dibs.Answer, now instant) {
	a.State = dibs.Held
	a.Left = e.left(p, now)
	a.Queued = p != nil
	if e.queue != nil {
		a.Ahead = e.queue.ahead(p)
	}
}
