package sqlitestore

import (
	"fmt"
	"time"

	"github.com/dibs-go/dibs"
)

// firstSeq is the seq of the first place in an empty queue; 0 means none.
const firstSeq = 1

// wait grants the key to the token whose turn it is, and otherwise gives or keeps
// it its place.
func (tx *transaction) wait(ks *keyState, c *dibs.Claim, a *dibs.Answer) error {
	p, redeems, err := tx.redeemed(ks, c)
	if err != nil {
		return err
	}
	if p.seq != 0 && !p.alive(tx.now) {
		if err := tx.deleteWaiter(p.seq); err != nil {
			return err
		}
		p = spot{}
	}
	if p.dormant >= taken {
		return tx.waitForTaken(ks, &p, redeems, c, a)
	}
	placed := p.seq != 0
	next := !ks.hasFront || placed && p.seq == ks.front.seq
	if next && c.Mode != dibs.Reserve && len(ks.live) < c.Permits {
		if redeems {
			return tx.redeem(ks, &p, c, a)
		}
		if placed {
			if err := tx.deleteWaiter(p.seq); err != nil {
				return err
			}
		}
		return tx.take(ks, tx.leaseFor(c), c, a)
	}
	stands := c.Place
	switch {
	case redeems:
		return tx.refuse(ks, p.seq, c, a, &waitingFor{token: c.Redeems, place: redeemerAsks})
	case placed && c.Mode == dibs.Try && (c.Place == 0 || !c.Redeems.IsZero()):
		stands = duration(p.until - tx.now) // as before
	case placed && c.Mode == dibs.Try:
		if err := tx.prolong(p.seq, c); err != nil {
			return err
		}
	case placed:
		if err := tx.keepWaiter(p.seq, p.dormant, c); err != nil {
			return err
		}
	case c.Mode == dibs.Try:
		if p.seq, err = tx.nextSeq(ks); err != nil {
			return err
		}
		return tx.refuse(ks, p.seq, c, a, nil)
	default:
		if p.seq, err = tx.nextSeq(ks); err != nil {
			return err
		}
		full, err := tx.queueFull(ks, p.seq)
		if err != nil {
			return err
		}
		if full {
			a.Err = fmt.Errorf("%w: %d wait for the key already", dibs.ErrFull, tx.s.opt.MaxWaiters)
			return nil
		}
		if err := tx.insertWaiter(p.seq, c); err != nil {
			return err
		}
		if !ks.hasFront {
			ks.front.seq = p.seq
		}
	}
	return tx.refuse(ks, p.seq, c, a, asIts(c, stands))
}

// take grants the key to a token that asks for it.
func (tx *transaction) take(ks *keyState, l lease, c *dibs.Claim, a *dibs.Answer) error {
	granted, err := tx.grant(ks, l)
	if err != nil {
		return err
	}
	if err := tx.granted(ks, granted, a); err != nil || c.Permits == 1 || !ks.hasFront {
		return err
	}
	return tx.advance(ks) // to those whom a reserved place held back
}

// asIts says how a token waits in a place of its own that stands for so long.
func asIts(c *dibs.Claim, stands time.Duration) *waitingFor {
	return &waitingFor{token: c.Token, place: stands, dormant: c.Mode == dibs.Reserve}
}

// refuse answers a token whose turn has not come, as inQueue does. A reserved place
// that keeps it from the key is in the way from now on.
func (tx *transaction) refuse(ks *keyState, seq int64, c *dibs.Claim, a *dibs.Answer, w *waitingFor) error {
	if c.Mode != dibs.Reserve && ks.front.seq != seq && ks.canPress() {
		front := &ks.front
		front.pressed, front.until = true, min(front.until, tx.now+front.hold)
		tx.dirty = true
		st := tx.st.press
		st.BindBlob(1, tx.k)
		st.BindInt(2, front.seq)
		st.BindInt(3, front.until)
		if _, err := st.Run(); err != nil {
			return err
		}
	}
	return tx.inQueue(ks, seq, c, a, w)
}

// inQueue answers a token whose place is seq, and who is known to wait there from
// now on; or, with w nil, whose place is or would be that.
func (tx *transaction) inQueue(ks *keyState, seq int64, c *dibs.Claim, a *dibs.Answer, w *waitingFor) error {
	a.State, a.Queued = dibs.Held, a.Queued || w != nil
	a.Idle = ks.hasFront && ks.front.seq != seq && len(ks.live) < c.Permits
	first := int64(0)
	for i := range ks.live {
		if first == 0 || ks.live[i].until < first {
			first = ks.live[i].until
		}
	}
	if ks.hasFront && ks.front.seq < seq {
		a.Ahead = int(seq - ks.front.seq)
		// Of thousands of places it is enough to look at the next ones.
		st := tx.st.firstEnd
		st.BindBlob(1, tx.k)
		st.BindInt(2, seq)
		if _, err := st.Step(); err != nil {
			st.Reset()
			return err
		}
		if end := st.Int(0); first == 0 || end < first {
			first = end
		}
		st.Reset()
	}
	switch {
	case first > tx.now:
		a.Left = duration(first - tx.now)
	case w != nil:
		// Nothing is in the way of a reserved place but itself.
		a.Left = w.place
	}
	if w != nil {
		// The end of a reserved place that is in the way is as good as a lease's.
		w.next = a.Ahead < c.Permits || a.Ahead == c.Permits && len(ks.live) == 0
		w.left = a.Left
		tx.joins = append(tx.joins, *w)
	}
	return nil
}

// readLiveFront reads the first place that is alive.
func (tx *transaction) readLiveFront(ks *keyState) error {
	st := tx.st.frontLiveWaiter
	st.BindBlob(1, tx.k)
	st.BindInt(2, tx.now)
	return readWaiter(st, ks)
}

// findWaiter returns the token's place, alive or dead, its own or taken.
func (tx *transaction) findWaiter(t dibs.Token) (spot, error) {
	st := tx.st.findWaiter
	st.BindBlob(1, tx.k)
	st.BindBlob(2, t[:])
	defer st.Reset()
	row, err := st.Step()
	if err != nil || !row {
		return spot{}, err
	}
	return spot{seq: st.Int(0), until: st.Int(1), dormant: st.Int(2)}, nil
}

// nextSeq returns the seq of a new place: behind all others, and behind those
// whom the key was offered or whose places are taken, because they may come back.
func (tx *transaction) nextSeq(ks *keyState) (int64, error) {
	last := int64(firstSeq - 1)
	for i := range ks.live {
		last = max(last, ks.live[i].seq)
	}
	st := tx.st.lastWaiter
	st.BindBlob(1, tx.k)
	defer st.Reset()
	row, err := st.Step()
	if row {
		last = max(last, st.Int(0))
	}
	return last + 1, err
}

// queueFull reports whether the key's queue is as long as it may be. They are
// only counted, and the dead ones dropped, when their numbers allow that.
func (tx *transaction) queueFull(ks *keyState, next int64) (bool, error) {
	most := int64(tx.s.opt.MaxWaiters)
	if !ks.hasFront || next-ks.front.seq < most {
		return false, nil
	}
	count := tx.st.countWaiters
	for range 2 {
		count.BindBlob(1, tx.k)
		_, err := count.Step()
		n := count.Int(0)
		count.Reset()
		if err != nil || n < most {
			return false, err
		}
		dead := tx.st.deleteDead
		dead.BindBlob(1, tx.k)
		dead.BindInt(2, tx.now)
		if _, err := dead.Run(); err != nil {
			return false, err
		}
		if tx.s.conn.Changes() == 0 {
			return true, nil
		}
		tx.dirty = true
	}
	return true, nil
}

func (tx *transaction) insertWaiter(seq int64, c *dibs.Claim) error {
	tx.dirty = true
	st := tx.st.insertWaiter
	st.BindBlob(1, tx.k)
	st.BindInt(2, seq)
	st.BindBlob(3, c.Token[:])
	st.BindInt(4, tx.now+micros(c.Place))
	st.BindBool(5, c.Mode == dibs.Reserve)
	st.BindInt(6, int64(c.Permits))
	st.BindBool(7, c.AtMostOnce)
	st.BindInt(8, micros(c.MaxAge))
	bindFingerprint(st, 9, &c.Fingerprint)
	st.BindString(10, c.Owner.String())
	st.BindInt(11, micros(c.Place))
	st.BindInt(12, micros(c.Hold))
	_, err := st.Run()
	return err
}

// keepWaiter writes a claim into the place that it has already.
func (tx *transaction) keepWaiter(seq, dormant int64, c *dibs.Claim) error {
	if c.Mode == dibs.Reserve {
		dormant = max(dormant, 1)
	} else {
		dormant = 0
	}
	tx.dirty = true
	st := tx.st.keepWaiter
	st.BindBlob(1, tx.k)
	st.BindInt(2, seq)
	st.BindInt(3, tx.now+micros(c.Place))
	st.BindInt(4, dormant)
	st.BindBool(5, c.AtMostOnce)
	st.BindInt(6, micros(c.MaxAge))
	bindFingerprint(st, 7, &c.Fingerprint)
	st.BindString(8, c.Owner.String())
	st.BindInt(9, micros(c.Place))
	st.BindInt(10, micros(c.Hold))
	_, err := st.Run()
	return err
}

// prolong lets a place last longer. Its Hold is counted anew.
func (tx *transaction) prolong(seq int64, c *dibs.Claim) error {
	tx.dirty = true
	st := tx.st.prolongWaiter
	st.BindBlob(1, tx.k)
	st.BindInt(2, seq)
	st.BindInt(3, tx.now+micros(c.Place))
	st.BindInt(4, micros(c.Place))
	_, err := st.Run()
	return err
}
