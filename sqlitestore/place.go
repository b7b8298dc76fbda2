package sqlitestore

import (
	"fmt"

	"github.com/dibs-go/dibs"
)

// firstSeq is the seq of the first place in an empty queue. It leaves room in
// front for those whose turn comes back to them; 0 means none.
const firstSeq = 1 << 32

// wait grants the key to the token whose turn it is, and otherwise gives or keeps
// it its place.
func (tx *transaction) wait(ks *keyState, c *dibs.Claim, a *dibs.Answer) error {
	var seq, until, dormant int64
	if ks.hasFront {
		var err error
		if seq, until, dormant, err = tx.findWaiter(c.Token); err != nil {
			return err
		}
	}
	placed := seq != 0
	if placed && until <= tx.now {
		if err := tx.deleteWaiter(seq); err != nil {
			return err
		}
		placed = false
	}
	next := !ks.hasFront || placed && seq == ks.front.seq
	if next && c.Mode != dibs.Reserve && len(ks.live) < c.Permits {
		if placed {
			if err := tx.deleteWaiter(seq); err != nil {
				return err
			}
		}
		l, err := tx.grant(ks, tx.leaseFor(c))
		if err != nil {
			return err
		}
		return tx.granted(ks, l, a)
	}
	switch {
	case placed && c.Mode == dibs.Try:
		if err := tx.prolong(seq, c); err != nil {
			return err
		}
		if c.Place == 0 {
			stands := *c
			stands.Place = duration(until - tx.now) // as before
			c = &stands
		}
	case placed:
		if err := tx.keepWaiter(seq, dormant, c); err != nil {
			return err
		}
	case c.Mode == dibs.Try:
		last, err := tx.lastWaiter()
		if err != nil {
			return err
		}
		return tx.inQueue(ks, last+1, false, c, a)
	default:
		last, err := tx.lastWaiter()
		if err != nil {
			return err
		}
		full, err := tx.queueFull(ks, last)
		if err != nil {
			return err
		}
		if full {
			a.Err = fmt.Errorf("%w: %d wait for the key already", dibs.ErrFull, tx.s.opt.MaxWaiters)
			return nil
		}
		seq = last + 1
		if err := tx.insertWaiter(seq, c); err != nil {
			return err
		}
		if !ks.hasFront {
			ks.front.seq = seq
		}
	}
	return tx.inQueue(ks, seq, true, c, a)
}

// inQueue answers a token whose place is, or would be, seq.
func (tx *transaction) inQueue(ks *keyState, seq int64, placed bool, c *dibs.Claim, a *dibs.Answer) error {
	a.State, a.Queued = dibs.Held, placed
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
	case placed:
		// Nothing is in the way of a reserved place but itself.
		a.Left = c.Place
	}
	if placed {
		tx.joins = append(tx.joins, waitingFor{
			token: c.Token, place: c.Place, dormant: c.Mode == dibs.Reserve,
			next: a.Ahead < c.Permits, left: a.Left,
		})
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

// findWaiter returns the token's place; a seq of 0 means that it has none.
func (tx *transaction) findWaiter(t dibs.Token) (seq, until, dormant int64, err error) {
	st := tx.st.findWaiter
	st.BindBlob(1, tx.k)
	st.BindBlob(2, t[:])
	defer st.Reset()
	row, err := st.Step()
	if err != nil || !row {
		return 0, 0, 0, err
	}
	return st.Int(0), st.Int(1), st.Int(2), nil
}

// lastWaiter returns the last place's seq, 0 if there is none.
func (tx *transaction) lastWaiter() (int64, error) {
	st := tx.st.lastWaiter
	st.BindBlob(1, tx.k)
	defer st.Reset()
	row, err := st.Step()
	if err != nil || !row {
		return firstSeq - 1, err
	}
	return st.Int(0), nil
}

// queueFull reports whether the key's queue is as long as it may be. They are
// only counted, and the dead ones dropped, when their numbers allow that.
func (tx *transaction) queueFull(ks *keyState, last int64) (bool, error) {
	most := int64(tx.s.opt.MaxWaiters)
	if !ks.hasFront || last-ks.front.seq+1 < most {
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
	_, err := st.Run()
	return err
}

// prolong lets a place last longer, if the claim says so.
func (tx *transaction) prolong(seq int64, c *dibs.Claim) error {
	if c.Place == 0 {
		return nil
	}
	tx.dirty = true
	st := tx.st.prolongWaiter
	st.BindBlob(1, tx.k)
	st.BindInt(2, seq)
	st.BindInt(3, tx.now+micros(c.Place))
	_, err := st.Run()
	return err
}
