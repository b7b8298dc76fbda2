package memstore

import (
	"cmp"
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
			sh.answered(e, c, now)
		}
		return
	}
	if !c.Redeems.IsZero() {
		if sh.redeem(e, c, a, now, t) {
			return
		}
	}
	if l := e.taker(c.Token); l != nil {
		l.from.sought = true
		if c.Place > 0 && c.Redeems.IsZero() {
			l.from.stands = c.Place
			if c.Mode == dibs.Reserve {
				l.from.holds = c.Hold
			}
		}
		e.waitsFor(l, a, now)
		return
	}
	p := sh.place(e, c.Token, now)
	if c.Mode != dibs.Reserve && e.turn(p) {
		if p != nil {
			e.queue.remove(p)
			p.maxAge, p.reserved, p.called, p.sought = 0, false, false, false
			p.holds, p.pressed = 0, false
		} else {
			p = sh.newAttempt()
		}
		sh.take(e, p, c, a, now, t)
		return
	}
	if p == nil && c.Mode != dibs.Try {
		if p = sh.join(e, c, now); p == nil {
			a.Err = errQueueFull
			return
		}
	} else if p != nil && (c.Mode != dibs.Try || c.Place > 0 && c.Redeems.IsZero()) {
		p.stands, p.until = c.Place, now.after(c.Place)
		p.pressed = false
		e.queue.stands(p)
	}
	if c.Mode != dibs.Try {
		// A Try leaves the place as it is: a reserved one is not offered to a
		// caller that does not wait for the offer.
		p.adopt(c)
		p.maxAge = c.MaxAge
		p.reserved = c.Mode == dibs.Reserve
		p.holds = c.Hold
	}
	if c.Mode != dibs.Reserve {
		e.press(p, now)
	}
	e.waits(p, a, now)
}

// take grants the key to a token that asks, as a lease that is in no list yet.
func (sh *shard) take(e *entry, l *attempt, c *dibs.Claim, a *dibs.Answer, now instant, t time.Time) {
	l.adopt(c)
	sh.grant(e, l, now.after(c.TTL), now, t)
	e.takeUp(l, sh.store)
	granted(a, l)
	sh.handOver(e, now)
}

// redeem answers a claim from a reserved place. It reports false, and does
// nothing, when there is no such place.
func (sh *shard) redeem(e *entry, c *dibs.Claim, a *dibs.Answer, now instant, t time.Time) bool {
	if l := e.taker(c.Redeems); l != nil {
		l.from.sought = true
		e.waitsFor(l, a, now)
		return true
	}
	p := sh.place(e, c.Redeems, now)
	if p == nil || !p.reserved {
		return false
	}
	if !e.turn(p) {
		e.press(p, now)
		e.waits(p, a, now)
		return true
	}
	e.queue.remove(p)
	p.holds = cmp.Or(c.Hold, p.holds)
	if own := sh.place(e, c.Token, now); own != nil {
		e.queue.remove(own)
		sh.drop(own)
	} else {
		sh.giveUpTaken(e, c.Token)
	}
	l := sh.newAttempt()
	l.from = p
	sh.take(e, l, c, a, now, t)
	return true
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
	l := e.taker(c.Redeems)
	p := e.standing(c.Redeems, now)
	if l == nil && (p == nil || !p.reserved) {
		l, p = e.taker(c.Token), e.standing(c.Token, now)
	}
	if l != nil {
		e.waitsFor(l, a, now)
		return
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
			e.takeUp(l, sh.store)
		}
		e.prolong(l, now.after(c.TTL))
	case l.offered:
		// Its turn came and it wants to keep the place instead: it stands where
		// it did before the offer.
		e.removeLease(l)
		if n := len(l.inherited); n > 0 {
			sh.store.take(-n)
		}
		*l = attempt{token: l.token, seq: l.seq, stands: c.Place, until: now.after(c.Place), holds: c.Hold, maxAge: c.MaxAge, reserved: true}
		l.adopt(c)
		sh.queueOf(e).rejoin(l)
		l.called = l == e.queue.first()
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

// press makes a reserved place whose turn has come run out after its Hold, now that
// the token with place p, or without one if it is nil, is kept from the key by it.
func (e *entry) press(p *attempt, now instant) {
	if e.queue == nil || e.held >= e.permits {
		return
	}
	first := e.queue.first()
	if first == p || !first.reserved || first.holds == 0 || first.pressed {
		return
	}
	first.pressed = true
	first.until = min(first.until, now.after(first.holds))
	e.queue.stands(first)
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

// standing returns the token's place if it has not run out, and changes nothing.
func (e *entry) standing(t dibs.Token, now instant) *attempt {
	if e.queue != nil && !t.IsZero() {
		if p := e.queue.find(t); p != nil && p.until > now {
			return p
		}
	}
	return nil
}

// answered gives up the places of a claim that has its answer: its own, and the
// one that it is made from.
func (sh *shard) answered(e *entry, c *dibs.Claim, now instant) {
	left := false
	for _, t := range [...]dibs.Token{c.Token, c.Redeems} {
		if p := sh.place(e, t, now); p != nil && (t == c.Token || p.reserved) {
			e.queue.remove(p)
			sh.drop(p)
			left = true
		}
	}
	if left {
		sh.handOver(e, now)
	}
}

// giveUpTaken gives up the token's place that a lease has taken, and reports
// whether there was one.
func (sh *shard) giveUpTaken(e *entry, t dibs.Token) bool {
	l := e.taker(t)
	if l == nil {
		return false
	}
	e.untake(l)
	sh.drop(l.from)
	l.from = nil
	return true
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
	sh.seq++
	p.token, p.seq = c.Token, sh.seq
	p.stands, p.until, p.holds = c.Place, now.after(c.Place), c.Hold
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
	a.Queued = p != nil
	position := 0
	switch {
	case p != nil:
		position = p.position
	case e.queue != nil:
		position = len(e.queue.places)
	}
	e.waitsAt(position, p, a, now)
	a.Idle = e.queue != nil && e.held < e.permits && e.queue.first() != p
	if p != nil {
		a.Ahead = min(a.Ahead, e.queue.waiting-1)
	}
}

// waitsFor answers a token whose place a lease has taken.
func (e *entry) waitsFor(l *attempt, a *dibs.Answer, now instant) {
	a.Queued = true
	position := 0
	if e.queue != nil {
		position = e.queue.after(l.from.seq)
	}
	e.waitsAt(position, l, a, now)
}

func (e *entry) waitsAt(position int, p *attempt, a *dibs.Answer, now instant) {
	a.State = dibs.Held
	a.Left = e.left(position, p, now)
	if e.queue != nil {
		a.Ahead = e.queue.ahead(position)
	}
}
