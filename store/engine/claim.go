package engine

import (
	"fmt"

	"github.com/dibs-go/dibs/store"
)

// Terms is what a claim's answer depends on, beside the claim and the state.
type Terms struct {
	MaxWaiters int
	Process    int64 // that grants are pushed to; 0: none
}

// Claim answers a claim.
func (st *State) Claim(c *store.Claim, o *Terms, a *store.Answer) {
	st.Advance()
	if l := st.leases.of(c.Token); l != nil {
		switch c.Mode {
		case store.Look:
			a.State = store.Free
			return
		case store.Try, store.Queue:
			st.leases.prolong(l, st.most+Micros(c.TTL))
		}
		st.granted(l, a)
		return
	}
	front, own := st.front(), st.place(c.Token)
	at := own // the place whose number the claim has
	if own == nil && !c.From.IsZero() {
		if p := st.place(c.From); p != nil && p.Kind == reserved {
			at = p
		}
	}
	if own != nil && c.Mode != store.Look {
		own.woken = false
	}
	if st.refused(c, a) {
		if own != nil && c.Mode != store.Look && a.State != store.Unknown {
			st.drop(own)
			st.serve()
		}
		return
	}
	room := st.leases.room(int64(c.Permits), int64(c.Weight))
	first := front == nil || at != nil && at.Seq <= front.Seq
	turn := first && (at == nil || !st.leases.at(at.Seq))
	switch {
	case c.Mode == store.Reserve:
		at = st.reserve(own, c, o, a)
	case turn && room && c.Mode == store.Look:
		a.State, a.Queued = store.Free, at != nil
		return
	case turn && room:
		st.take(own, at, c, a)
		return
	case c.Mode == store.Look:
	case room && !first && front.Kind == reserved && st.idleSince == 0:
		st.idleSince = max(st.most, 1) // 0 is that it is not idle
	}
	if c.Mode == store.Queue {
		at = st.wait(own, at, c, o, a)
	}
	if a.Err == nil {
		st.held(at, a)
	}
}

// granted answers a holder, with the progress that its lease inherits.
func (st *State) granted(l *Lease, a *store.Answer) {
	*a = grantOf(l)
	if l.Inherits != 0 {
		st.step(Step{Does: ReadProgress, Fence: l.Inherits, To: &a.Progress})
	}
}

// refused answers a claim that gets neither the key nor a place, and reports whether it did.
func (st *State) refused(c *store.Claim, a *store.Answer) bool {
	r := &st.record
	accepts := r.Accepts(Micros(c.MaxAge), st.now)
	switch {
	case st.differs(&c.Fingerprint), accepts && r.Fingerprint.Differs(c.Fingerprint):
		a.State = store.Mismatch
	case accepts:
		a.State = store.Done
		a.Record = r.Answer(st.now, st.most)
		st.step(Step{Does: ReadRecord, To: &a.Record.Data})
	case st.unknown():
		a.State, a.ID = store.Unknown, st.abandoned.Token.ID()
	default:
		return false
	}
	return true
}

// take grants the key to a claim.
func (st *State) take(own, at *Place, c *store.Claim, a *store.Answer) {
	l := Lease{
		Token: c.Token, Ends: st.most + Micros(c.TTL), Once: c.AtMostOnce, Permits: int64(c.Permits), Weight: int64(c.Weight),
		Fingerprint: c.Fingerprint, Owner: st.owner(&c.Owner),
	}
	st.granted(st.grant(&l, own, at, Micros(c.Grace)), a)
	st.serve()
}

// reserve makes a reserved place, or prolongs it.
func (st *State) reserve(own *Place, c *store.Claim, o *Terms, a *store.Answer) *Place {
	p := st.join(c, reserved, own, own, o, a)
	if p != nil {
		p.Grace, p.Asked = Micros(c.Grace), st.most
	}
	return p
}

// wait makes a token wait at its own place, at the place that it claims from, or at the end.
func (st *State) wait(own, at *Place, c *store.Claim, o *Terms, a *store.Answer) *Place {
	p := st.join(c, waits, own, at, o, a)
	if p != nil {
		p.TTL, p.Permits, p.Weight = Micros(c.TTL), int64(c.Permits), int64(c.Weight)
		p.Once, p.MaxAge, p.Process, p.Fingerprint = c.AtMostOnce, Micros(c.MaxAge), o.Process, c.Fingerprint
		p.Grace = Micros(c.Grace)
	}
	return p
}

// join returns the token's own place, or puts one at the number of at, or at the end. If the
// queue is full it answers that and returns nil.
func (st *State) join(c *store.Claim, kind int64, own, at *Place, o *Terms, a *store.Answer) *Place {
	p := own
	if own == nil || own.Kind != kind {
		p = st.queue.make(c.Token, kind)
		switch {
		case at != nil:
			p.Seq = at.Seq
		case st.full(o.MaxWaiters):
			a.Err = fmt.Errorf("%w: %d already", store.ErrQueueFull, o.MaxWaiters)
			return nil
		default:
			p.Seq = st.next()
		}
	}
	p.Ends, p.Owner = st.most+Micros(c.PlaceTTL), st.owner(&c.Owner)
	if p == own {
		st.queue.lasts(p.Ends)
		return p
	}
	if own != nil {
		st.drop(own)
	}
	st.queue.insert(p)
	return p
}

// highest returns a fence that no grant of the key is above, not even a grant that was lost with
// the server's data.
func (st *State) highest() uint64 { return uint64(max(st.fence, st.now-1)) }

// held answers a claim whose turn has not come. p is its place, nil if it has none.
func (st *State) held(p *Place, a *store.Answer) {
	a.State, a.Queued = store.Held, p != nil
	if st.nextFence == nil {
		a.Fence = st.highest()
	}
	seq := st.next()
	if p != nil {
		seq = p.Seq
	}
	a.Ahead = st.ahead(seq)
	if len(st.leases.all) > 0 {
		a.Left = st.left(st.leases.first())
	}
}
