package mysqlstore

import (
	"cmp"
	"fmt"

	"github.com/dibs-go/dibs"
)

// terms is under what a claim is answered, beside what it says itself.
type terms struct {
	maxWaiters int
	tells      bool // the process takes a grant that is told
}

// claim answers a claim.
func (st *state) claim(c *dibs.Claim, o *terms, a *dibs.Answer) error {
	if c.Mode == dibs.Look {
		return st.look(c, a)
	}
	if err := st.advance(); err != nil {
		return err
	}
	own := st.holder(c.Token)
	if own != nil && !own.offered {
		st.again(own, c, a)
		return nil
	}
	if st.permits != int64(c.Permits) {
		agreed, err := st.agreed()
		if err != nil {
			return err
		}
		if !agreed {
			st.permits = int64(c.Permits)
		}
	}
	if err := st.refused(c, a); err != nil {
		return err
	}
	if own != nil {
		return st.confirm(c, o, a)
	}
	source := c.Token
	if !c.Redeems.IsZero() {
		source = c.Redeems
	}
	by := st.takenBy(source)
	switch {
	case a.State == dibs.Done || a.State == dibs.Mismatch: // it has its answer
		st.removePlace(c.Token)
		if p := st.queue.of(c.Redeems); !c.Redeems.IsZero() && p != nil && (p.kind == reserved || p.kind == called) {
			st.queue.remove(p.seq)
		}
		return st.handOver()
	case a.State != 0:
		return nil
	case by != nil:
		p := st.queue.at(by.seq)
		p.adopt(c, o, st.now)
		st.behind(p.seq, a)
		return nil
	}
	return st.queueUp(c, o, a)
}

// again answers a token that holds the key already: its lease starts anew.
func (st *state) again(own *lease, c *dibs.Claim, a *dibs.Answer) {
	if c.Mode == dibs.Reserve { // it has no use for a place
		a.State, a.Fence, a.Left = dibs.Held, st.highest(), duration(own.ends-st.now)
		return
	}
	own.ends = st.now + micros(c.TTL)
	st.granted(own, a)
}

// granted answers a holder.
func (st *state) granted(l *lease, a *dibs.Answer) {
	*a = grantOf(l)
	if l.inherits {
		st.writes.readProgress(&a.Progress)
	}
}

// highest is a fence that no grant of the key until now is above, also none that was
// lost with the data.
func (st *state) highest() uint64 { return uint64(max(st.fence, st.now-1)) }

// refused answers what is not for want of a turn, or leaves the answer as it is.
func (st *state) refused(c *dibs.Claim, a *dibs.Answer) error {
	if st.permits != int64(c.Permits) {
		agreed, err := st.agreed()
		if err != nil {
			return err
		}
		if agreed {
			a.State, a.Permits = dibs.PermitsDiffer, int(st.permits)
			return nil
		}
	}
	switch r := &st.record; {
	case st.clashes(c.Fingerprint, c.Token), st.lost != nil && st.lost.fingerprint.Differs(c.Fingerprint):
		a.State = dibs.Mismatch
	case c.MaxAge > 0 && r.ends > st.now && r.written >= st.now-micros(c.MaxAge):
		if r.fingerprint.Differs(c.Fingerprint) {
			a.State = dibs.Mismatch
			return nil
		}
		a.State = dibs.Done
		a.Record.Age, a.Record.Left = duration(max(st.now-r.written, 0)), duration(r.ends-st.now)
		st.writes.readRecord(&a.Record.Data)
	case st.unknown():
		a.State, a.ID = dibs.Unknown, st.lost.token.ID()
	}
	return nil
}

// confirm answers a token that the key is offered to.
func (st *state) confirm(c *dibs.Claim, o *terms, a *dibs.Answer) error {
	own := st.holder(c.Token)
	switch {
	case a.State == dibs.Unknown:
		return nil
	case a.State == 0 && c.Mode != dibs.Reserve:
		own.offered, own.ends = false, st.now+micros(c.TTL)
		own.fingerprint, own.once, own.owner = c.Fingerprint, c.AtMostOnce, c.Owner.String()
		st.lost = nil
		st.granted(own, a)
		return nil
	}
	st.takeOut(c.Token)
	if a.State != 0 {
		return st.handOver()
	}
	// It wants to be asked later, and was first. It knows that its turn has come.
	p := newPlace(firstSeq, c, o, st.now)
	p.kind = called
	if n := st.queue.places; len(n) > 0 {
		p.seq = n[0].seq - 1
	}
	st.queue.insert(p)
	front, err := st.front()
	if err != nil {
		return err
	}
	st.held(front, p, a)
	return nil
}

// queueUp grants the key to the token whose turn it is, and otherwise gives or keeps
// it its place.
func (st *state) queueUp(c *dibs.Claim, o *terms, a *dibs.Answer) error {
	redeems, p := false, (*place)(nil)
	if !c.Redeems.IsZero() {
		p = st.own(c.Redeems)
		redeems = p != nil && p.kind != waits
	}
	if !redeems { // the other is as none
		p = st.own(c.Token)
	}
	front, err := st.front()
	if err != nil {
		return err
	}
	if c.Mode != dibs.Reserve && int64(len(st.holders)) < st.permits && (front == nil || front == p) {
		l := lease{
			token: c.Token, ends: st.now + micros(c.TTL), once: c.AtMostOnce, fingerprint: c.Fingerprint, owner: c.Owner.String(),
		}
		switch {
		case redeems:
			p.kind, p.ends, p.pressed = taken, forever, false
			p.hold = cmp.Or(micros(c.Hold), p.hold)
			st.removePlace(c.Token)
			l.seq = p.seq
		case p != nil:
			st.queue.remove(p.seq)
		}
		st.grant(l)
		st.lost = nil
		if err := st.handOver(); err != nil {
			return err
		}
		st.granted(st.holder(c.Token), a)
		return nil
	}
	switch {
	case p != nil:
		p.adopt(c, o, st.now)
	case c.Mode != dibs.Try:
		full, err := st.full(o.maxWaiters)
		if err != nil {
			return err
		}
		if full {
			a.Err = errQueueFull(o.maxWaiters)
			return nil
		}
		p = newPlace(st.queue.next(), c, o, st.now)
		st.queue.insert(p)
	}
	if c.Mode != dibs.Reserve {
		st.press(front, p)
	}
	st.held(front, p, a)
	return nil
}

func errQueueFull(most int) error {
	return fmt.Errorf("%w: %d wait for the key already", dibs.ErrFull, most)
}

// full reports whether as many wait as may. Places that have run out do not count.
func (st *state) full(most int) (bool, error) {
	q := &st.queue
	if n := len(q.places); n == 0 || q.places[n-1].seq-q.places[0].seq+1 < int64(most) {
		return false, nil
	}
	for !q.complete {
		if err := q.more(); err != nil {
			return false, err
		}
	}
	n := 0
	for _, p := range q.standing() {
		if p.ends <= st.now {
			q.remove(p.seq)
		} else {
			n++
		}
	}
	return n >= most, nil
}

// held answers one whose turn has not come, and who has the place p, or none, where
// front is the first place.
func (st *state) held(front, p *place, a *dibs.Answer) {
	a.State, a.Fence, a.Queued = dibs.Held, st.highest(), p != nil
	a.Idle = front != nil && front != p && int64(len(st.holders)) < st.permits
	seq := st.queue.next()
	if p != nil {
		seq = p.seq
	}
	ahead, ends := st.inTheWay(seq)
	if ends == 0 && p != nil {
		ends = p.ends // nothing is in the way of a reserved place but itself
	}
	a.Ahead, a.Left = ahead, duration(max(ends-st.now, 0))
}

// behind answers one from a place that a lease has taken.
func (st *state) behind(seq int64, a *dibs.Answer) {
	ahead, ends := st.inTheWay(seq)
	a.State, a.Fence, a.Queued = dibs.Held, st.highest(), true
	a.Ahead, a.Left = ahead, duration(ends-st.now)
}

// inTheWay returns how many places come before that seq, and when the first of them or of
// the leases ends; 0 if there is none.
func (st *state) inTheWay(seq int64) (ahead int, ends int64) {
	places, ends := st.ahead(seq)
	for i := range st.holders {
		if e := st.holders[i].ends; ends == 0 || e < ends {
			ends = e
		}
	}
	return int(places), ends
}

// look answers what Try would find. What it changes on the way is not written.
func (st *state) look(c *dibs.Claim, a *dibs.Answer) error {
	if err := st.advance(); err != nil {
		return err
	}
	if st.holder(c.Token) != nil && !c.Token.IsZero() {
		a.State = dibs.Free
		return nil
	}
	if err := st.refused(c, a); err != nil || a.State != 0 {
		return err
	}
	source := c.Token
	if !c.Redeems.IsZero() {
		source = c.Redeems
	}
	if by := st.takenBy(source); by != nil {
		st.behind(by.seq, a)
		return nil
	}
	p := st.own(source)
	if !c.Redeems.IsZero() && (p == nil || p.kind == waits) {
		p = st.own(c.Token)
	}
	front, err := st.front()
	if err != nil {
		return err
	}
	switch free := len(st.holders) == 0 || int64(len(st.holders)) < st.permits; {
	case free && (front == nil || front == p):
		a.State = dibs.Free
	default:
		st.held(front, p, a)
	}
	return nil
}

// newPlace is the place that a claim joins the queue with.
func newPlace(seq int64, c *dibs.Claim, o *terms, now int64) *place {
	p := &place{
		seq: seq, token: c.Token, ends: now + micros(c.Place), lasts: micros(c.Place), once: c.AtMostOnce,
		maxAge: micros(c.MaxAge), hold: micros(c.Hold), tells: o.tells && !c.AtMostOnce, fingerprint: c.Fingerprint, owner: c.Owner.String(),
	}
	if c.Mode == dibs.Reserve {
		p.kind = reserved
	}
	return p
}

// adopt makes a place, also one that is taken, what the claim asks for. What must not
// be done twice waits until it is known that it was heard, and so is not told.
func (p *place) adopt(c *dibs.Claim, o *terms, now int64) {
	if c.Redeems.IsZero() && (c.Mode != dibs.Try || c.Place > 0) {
		p.lasts = micros(c.Place)
		if p.kind < taken {
			p.ends, p.pressed = now+p.lasts, false
		}
	}
	if c.Mode != dibs.Try {
		p.once, p.maxAge, p.tells = c.AtMostOnce, micros(c.MaxAge), o.tells && !c.AtMostOnce
		p.fingerprint, p.owner = c.Fingerprint, c.Owner.String()
	}
	if c.Mode == dibs.Reserve || c.Mode == dibs.Queue && p.kind < taken { // which has none
		p.hold = micros(c.Hold)
	}
	switch {
	case p.kind >= taken:
		if c.Mode != dibs.Reserve {
			p.kind = sought
		}
	case c.Mode == dibs.Queue:
		p.kind = waits
	case c.Mode == dibs.Reserve:
		p.kind = max(p.kind, reserved)
	case p.kind == called: // whoever asked is told anew
		p.kind = reserved
	}
}
