package engine

import (
	"fmt"

	"github.com/dibs-go/dibs"
)

// Terms is under what a claim is answered, beside what it says itself.
type Terms struct {
	MaxWaiters int
	Process    int64 // that takes a grant that is told; 0: none does
}

// Claim answers a claim.
func (st *State) Claim(c *dibs.Claim, o *Terms, a *dibs.Answer) {
	st.Advance()
	if l := st.holder(c.Token); l != nil {
		switch c.Mode {
		case dibs.Look:
			a.State = dibs.Free
			return
		case dibs.Try, dibs.Queue:
			l.Ends = st.now + Micros(c.TTL)
		}
		st.granted(l, a)
		return
	}
	front, own := st.front(), st.queue.of(c.Token)
	seat := own // the number that the claim has, if any
	if p := st.queue.of(c.From); own == nil && p != nil && p.Kind == reserved {
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
	first := front == nil || seat != nil && seat.Seq <= front.Seq
	turn := first && (seat == nil || !st.leased(seat.Seq))
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
	case room && !first && front.Kind == reserved && st.free == 0:
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
func (st *State) granted(l *Lease, a *dibs.Answer) {
	*a = grantOf(l)
	if l.Heir != 0 {
		st.step(Step{Does: ReadProgress, Fence: l.Heir, To: &a.Progress})
	}
}

// refused answers a claim that is not for want of a turn, and reports whether it did.
func (st *State) refused(c *dibs.Claim, a *dibs.Answer) bool {
	r := &st.record
	accepts := r.Accepts(Micros(c.MaxAge), st.now)
	switch {
	case st.differs(c.Fingerprint), accepts && r.Fingerprint.Differs(c.Fingerprint):
		a.State = dibs.Mismatch
	case accepts:
		a.State = dibs.Done
		a.Record.Age, a.Record.Left = Duration(max(st.now-r.Written, 0)), Duration(r.Ends-st.now)
		st.step(Step{Does: ReadRecord, To: &a.Record.Data})
	case st.unknown():
		a.State, a.ID = dibs.Unknown, st.lost.Token.ID()
	default:
		return false
	}
	return true
}

// take grants the key to a claim.
func (st *State) take(own, seat *Place, c *dibs.Claim, a *dibs.Answer) {
	l := st.grant(Lease{
		Token: c.Token, Ends: st.now + Micros(c.TTL), Once: c.AtMostOnce, Permits: int64(c.Permits), Weight: int64(c.Weight),
		Fingerprint: c.Fingerprint, Owner: c.Owner.String(),
	}, own, seat, Micros(c.Hold))
	st.granted(l, a)
	st.serve()
}

// reserve takes a reserved place, or asks for it again.
func (st *State) reserve(own *Place, c *dibs.Claim, o *Terms, a *dibs.Answer) *Place {
	p := &Place{Token: c.Token, Kind: reserved}
	if !st.join(p, own, own, o, a) {
		return nil
	}
	p.Ends, p.Hold, p.Asked, p.Owner = st.now+Micros(c.Stay), Micros(c.Hold), st.now, c.Owner.String()
	return p
}

// wait has a token wait at its place, at the one that it claims from, or at the end.
func (st *State) wait(own, seat *Place, c *dibs.Claim, o *Terms, a *dibs.Answer) *Place {
	p := &Place{Token: c.Token}
	if !st.join(p, own, seat, o, a) {
		return nil
	}
	p.Ends, p.Owner = st.now+Micros(c.Stay), c.Owner.String()
	p.TTL, p.Permits, p.Weight = Micros(c.TTL), int64(c.Permits), int64(c.Weight)
	p.Once, p.MaxAge, p.Process, p.Fingerprint = c.AtMostOnce, Micros(c.MaxAge), o.Process, c.Fingerprint
	p.Hold = Micros(c.Hold)
	return p
}

// join puts a place where its token's own one is, or at the number of a seat, or at the
// end. It reports false, and answers, when there is no room for one more.
func (st *State) join(p, own, seat *Place, o *Terms, a *dibs.Answer) bool {
	switch {
	case seat != nil:
		p.Seq = seat.Seq
	case st.full(o.MaxWaiters):
		a.Err = fmt.Errorf("%w: %d wait for the key already", dibs.ErrFull, o.MaxWaiters)
		return false
	default:
		p.Seq = st.next()
	}
	if own != nil {
		st.queue.remove(own)
	}
	st.queue.insert(p)
	return true
}

// highest is a fence that no grant of the key until now is above, also none that was
// lost with the data.
func (st *State) highest() uint64 { return uint64(max(st.fence, st.now-1)) }

// held answers a claim whose turn has not come; p is its place, nil if it has none.
func (st *State) held(p *Place, a *dibs.Answer) {
	a.State, a.Fence, a.Queued = dibs.Held, st.highest(), p != nil
	seq := st.next()
	if p != nil {
		seq = p.Seq
	}
	a.Ahead = st.ahead(seq)
	for i, l := range st.holders {
		if left := Duration(l.Ends - st.now); i == 0 || left < a.Left {
			a.Left = left
		}
	}
}
