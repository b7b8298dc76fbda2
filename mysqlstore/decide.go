package mysqlstore

import (
	"fmt"

	"github.com/dibs-go/dibs"
)

// terms is under what a claim is answered, beside what it says itself.
type terms struct {
	maxWaiters int
	tells      bool // the process takes a grant that is told
}

// claim answers a claim.
func (st *state) claim(c *dibs.Claim, o *terms, a *dibs.Answer) {
	st.advance()
	if l := st.holder(c.Token); l != nil {
		switch c.Mode {
		case dibs.Look:
			a.State = dibs.Free
			return
		case dibs.Try, dibs.Queue:
			l.ends = st.now + micros(c.TTL)
		}
		st.granted(l, a)
		return
	}
	front, own := st.front(), st.queue.of(c.Token)
	seat := own // the number that the claim has, if any
	if p := st.queue.of(c.From); own == nil && p != nil && p.kind == reserved {
		seat = p
	}
	if st.refused(c, a) {
		if own != nil && c.Mode != dibs.Look && a.State != dibs.Unknown {
			st.queue.remove(own)
			st.serve()
		}
		return
	}
	room := st.room(int64(c.Permits), int64(c.Weight))
	first := front == nil || seat != nil && seat.seq <= front.seq
	turn := first && (seat == nil || !st.leased(seat.seq))
	switch {
	case c.Mode == dibs.Reserve:
		seat = st.reserve(own, c, o, a)
	case turn && room && c.Mode == dibs.Look:
		a.State, a.Queued = dibs.Free, seat != nil
		return
	case turn && room:
		st.take(own, seat, c, a)
		return
	case c.Mode == dibs.Look:
	case room && !first && front.kind == reserved && st.free == 0:
		st.free = st.now
	}
	if c.Mode == dibs.Queue {
		seat = st.wait(own, seat, c, o, a)
	}
	if a.Err == nil {
		st.held(seat, a)
	}
}

// granted answers a holder.
func (st *state) granted(l *lease, a *dibs.Answer) {
	*a = grantOf(l)
	if l.heir != 0 {
		st.writes.readProgress(l.heir, &a.Progress)
	}
}

// refused answers a claim that is not for want of a turn, and reports whether it did.
func (st *state) refused(c *dibs.Claim, a *dibs.Answer) bool {
	r := &st.record
	accepts := r.accepts(micros(c.MaxAge), st.now)
	switch {
	case st.differs(c.Fingerprint), accepts && r.fingerprint.Differs(c.Fingerprint):
		a.State = dibs.Mismatch
	case accepts:
		a.State = dibs.Done
		a.Record.Age, a.Record.Left = duration(max(st.now-r.written, 0)), duration(r.ends-st.now)
		st.writes.readRecord(&a.Record.Data)
	case st.unknown():
		a.State, a.ID = dibs.Unknown, st.lost.token.ID()
	default:
		return false
	}
	return true
}

// take grants the key to a claim.
func (st *state) take(own, seat *place, c *dibs.Claim, a *dibs.Answer) {
	l := st.grant(lease{
		token: c.Token, ends: st.now + micros(c.TTL), once: c.AtMostOnce, permits: int64(c.Permits), weight: int64(c.Weight),
		fingerprint: c.Fingerprint, owner: c.Owner.String(),
	}, own, seat, micros(c.Hold))
	st.granted(l, a)
	st.serve()
}

// reserve takes a reserved place, or asks for it again.
func (st *state) reserve(own *place, c *dibs.Claim, o *terms, a *dibs.Answer) *place {
	p := &place{token: c.Token, kind: reserved}
	if !st.join(p, own, own, o, a) {
		return nil
	}
	p.ends, p.hold, p.asked, p.owner = st.now+micros(c.Stay), micros(c.Hold), st.now, c.Owner.String()
	return p
}

// wait has a token wait at its place, at the one that it claims from, or at the end.
func (st *state) wait(own, seat *place, c *dibs.Claim, o *terms, a *dibs.Answer) *place {
	p := &place{token: c.Token}
	if !st.join(p, own, seat, o, a) {
		return nil
	}
	p.ends, p.owner = st.now+micros(c.Stay), c.Owner.String()
	p.ttl, p.permits, p.weight = micros(c.TTL), int64(c.Permits), int64(c.Weight)
	p.once, p.maxAge, p.tells = c.AtMostOnce, micros(c.MaxAge), o.tells && !c.AtMostOnce
	p.fingerprint, p.hold = c.Fingerprint, micros(c.Hold)
	return p
}

// join puts a place where its token's own one is, or at the number of a seat, or at the
// end. It reports false, and answers, when there is no room for one more.
func (st *state) join(p, own, seat *place, o *terms, a *dibs.Answer) bool {
	switch {
	case seat != nil:
		p.seq = seat.seq
	case st.full(o.maxWaiters):
		a.Err = fmt.Errorf("%w: %d wait for the key already", dibs.ErrFull, o.maxWaiters)
		return false
	default:
		p.seq = st.next()
	}
	if own != nil {
		st.queue.remove(own)
	}
	st.queue.insert(p)
	return true
}

// highest is a fence that no grant of the key until now is above, also none that was
// lost with the data.
func (st *state) highest() uint64 { return uint64(max(st.fence, st.now-1)) }

// held answers one whose turn has not come, and who has that place, or none.
func (st *state) held(p *place, a *dibs.Answer) {
	a.State, a.Fence, a.Queued = dibs.Held, st.highest(), p != nil
	seq := st.next()
	if p != nil {
		seq = p.seq
	}
	a.Ahead = st.ahead(seq)
	for i, l := range st.holders {
		if left := duration(l.ends - st.now); i == 0 || left < a.Left {
			a.Left = left
		}
	}
}
