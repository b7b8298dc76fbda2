package engine

import (
	"fmt"

	"github.com/dibs-go/dibs"
)

// Terms is what a claim's answer depends on, beside the claim and the state.
type Terms struct {
	MaxWaiters int
	Process    int64 // that grants are pushed to; 0: none
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
	at := own // the place whose number the claim has
	if p := st.queue.of(c.From); own == nil && p != nil && p.Kind == reserved {
		at = p
	}
	if st.refused(c, a) {
		if own != nil && c.Mode != dibs.Look && a.State != dibs.Unknown {
			st.queue.remove(own)
			st.serve()
		}
		return
	}
	room := st.room(int64(c.Permits), int64(c.Weight))
	first := front == nil || at != nil && at.Seq <= front.Seq
	turn := first && (at == nil || !st.leased(at.Seq))
	switch {
	case c.Mode == dibs.Reserve:
		at = st.reserve(own, c, o, a)
	case turn && room && c.Mode == dibs.Look:
		a.State, a.Queued = dibs.Free, at != nil
		return
	case turn && room:
		st.take(own, at, c, a)
		return
	case c.Mode == dibs.Look:
	case room && !first && front.Kind == reserved && st.idleSince == 0:
		st.idleSince = st.now
	}
	if c.Mode == dibs.Queue {
		at = st.wait(own, at, c, o, a)
	}
	if a.Err == nil {
		st.held(at, a)
	}
}

// granted answers a holder, with the progress that its lease inherits.
func (st *State) granted(l *Lease, a *dibs.Answer) {
	*a = grantOf(l)
	if l.Inherits != 0 {
		st.step(Step{Does: ReadProgress, Fence: l.Inherits, To: &a.Progress})
	}
}

// refused answers a claim that gets neither the key nor a place, and reports whether it did.
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
		a.State, a.ID = dibs.Unknown, st.abandoned.Token.ID()
	default:
		return false
	}
	return true
}

// take grants the key to a claim.
func (st *State) take(own, at *Place, c *dibs.Claim, a *dibs.Answer) {
	l := st.grant(Lease{
		Token: c.Token, Ends: st.now + Micros(c.TTL), Once: c.AtMostOnce, Permits: int64(c.Permits), Weight: int64(c.Weight),
		Fingerprint: c.Fingerprint, Owner: c.Owner.String(),
	}, own, at, Micros(c.Hold))
	st.granted(l, a)
	st.serve()
}

// reserve makes a reserved place, or prolongs it.
func (st *State) reserve(own *Place, c *dibs.Claim, o *Terms, a *dibs.Answer) *Place {
	p := &Place{Token: c.Token, Kind: reserved}
	if !st.join(p, own, own, o, a) {
		return nil
	}
	p.Ends, p.Hold, p.Asked, p.Owner = st.now+Micros(c.Stay), Micros(c.Hold), st.now, c.Owner.String()
	return p
}

// wait makes a token wait at its own place, at the place that it claims from, or at the end.
func (st *State) wait(own, at *Place, c *dibs.Claim, o *Terms, a *dibs.Answer) *Place {
	p := &Place{Token: c.Token}
	if !st.join(p, own, at, o, a) {
		return nil
	}
	p.Ends, p.Owner = st.now+Micros(c.Stay), c.Owner.String()
	p.TTL, p.Permits, p.Weight = Micros(c.TTL), int64(c.Permits), int64(c.Weight)
	p.Once, p.MaxAge, p.Process, p.Fingerprint = c.AtMostOnce, Micros(c.MaxAge), o.Process, c.Fingerprint
	p.Hold = Micros(c.Hold)
	return p
}

// join puts a place where the token's own place is, at the number of at, or at the end. If the
// queue is full it answers that and returns false.
func (st *State) join(p, own, at *Place, o *Terms, a *dibs.Answer) bool {
	switch {
	case at != nil:
		p.Seq = at.Seq
	case st.full(o.MaxWaiters):
		a.Err = fmt.Errorf("%w: %d clients wait for the key already", dibs.ErrFull, o.MaxWaiters)
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

// highest returns a fence that no grant of the key is above, not even a grant that was lost with
// the server's data.
func (st *State) highest() uint64 { return uint64(max(st.fence, st.now-1)) }

// held answers a claim whose turn has not come. p is its place, nil if it has none.
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
