package sqlitestore

import (
	"fmt"

	"github.com/dibs-go/dibs"
)

// claim answers one claim. The error is one of the file.
func (tx *transaction) claim(c *dibs.Claim, a *dibs.Answer) error {
	if a.Err = c.Validate(); a.Err != nil {
		return nil
	}
	tx.use(c.Key, c.Token)
	if c.Mode == dibs.Try || c.Mode == dibs.Queue {
		idle, err := tx.isIdle(c.MaxAge > 0)
		if err != nil {
			return err
		}
		if idle { // the short way to a key that is in nobody's way: one more statement
			return tx.insertLease(tx.leaseFor(c), a)
		}
	}
	ks, err := tx.load()
	if err != nil {
		return err
	}
	if err := tx.ask(ks, c, a); err != nil {
		return err
	}
	return tx.serve(ks)
}

// isIdle reports whether nobody holds the key, abandoned it or waits for it, and
// also that it has no record, if that matters.
func (tx *transaction) isIdle(noRecord bool) (bool, error) {
	st := tx.st.inUse
	if noRecord {
		st = tx.st.inUseOrDone
	}
	st.BindBlob(1, tx.k)
	row, err := st.Run()
	return !row, err
}

// leaseFor returns the lease of a claim that is granted, as if it were the first one.
func (tx *transaction) leaseFor(c *dibs.Claim) *lease {
	return &lease{
		token: c.Token, until: tx.now + micros(c.TTL), fence: tx.nextFence(), since: tx.now, attempt: 1,
		permits: int64(c.Permits), weight: int64(c.Weight),
		once: c.AtMostOnce, fingerprint: c.Fingerprint, owner: c.Owner.String(),
	}
}

// insertLease grants a lease.
func (tx *transaction) insertLease(l *lease, a *dibs.Answer) error {
	a.State, a.Fence, a.Attempt = dibs.Granted, uint64(l.fence), int(l.attempt)
	tx.dirty = true
	st := tx.st.insertLease
	st.BindBlob(1, tx.k)
	st.BindBlob(2, l.token[:])
	st.BindInt(3, l.until)
	st.BindInt(4, l.fence)
	st.BindInt(5, l.since)
	st.BindInt(6, l.attempt)
	st.BindInt(7, l.permits)
	st.BindInt(8, l.weight)
	st.BindInt(9, l.number)
	st.BindBool(10, l.once)
	bindFingerprint(st, 11, &l.fingerprint)
	st.BindString(12, l.owner)
	_, err := st.Run()
	return err
}

// ask answers a claim for a key up to now.
func (tx *transaction) ask(ks *keyState, c *dibs.Claim, a *dibs.Answer) error {
	if l := ks.holder(c.Token); l != nil {
		return tx.again(l, c, a)
	}
	own, err := tx.findPlace(ks, c.Token)
	if err != nil {
		return err
	}
	p := own
	if p.number == 0 {
		if p, err = tx.findPlace(ks, c.From); err != nil {
			return err
		}
		if !p.reserved {
			p = place{}
		}
	}
	if answered, err := tx.answer(ks, c, a); answered || err != nil {
		if err == nil && own.number != 0 && c.Mode != dibs.Look && a.State != dibs.Unknown {
			tx.leaves = append(tx.leaves, c.Token)
			err = tx.deletePlace(ks, &own)
		}
		return err
	}
	switch turn := ks.front == p.number && !ks.taken(p.number); {
	case c.Mode == dibs.Reserve:
		return tx.join(ks, own, own, c, a)
	case !ks.hasRoom(int64(c.Permits), int64(c.Weight)):
	case turn && c.Mode == dibs.Look:
		a.State, a.Queued = dibs.Free, p.number != 0
		return nil
	case turn:
		return tx.grant(ks, own, p, c, a)
	case c.Mode != dibs.Look && ks.isKept() && ks.free == 0 && !ks.taken(p.number):
		if err := tx.setFree(ks, max(1, tx.now)); err != nil {
			return err
		}
	}
	if c.Mode == dibs.Queue {
		return tx.join(ks, own, p, c, a)
	}
	return tx.kept(ks, p.number, c, a)
}

// again answers a token that holds the key already: its lease starts anew.
func (tx *transaction) again(l *lease, c *dibs.Claim, a *dibs.Answer) error {
	if c.Mode == dibs.Look {
		a.State = dibs.Free
		return nil
	}
	if c.Mode != dibs.Reserve {
		tx.dirty = true
		st := tx.st.renewLease
		st.BindInt(3, tx.now+micros(c.TTL))
		st.BindInt(4, tx.now)
		if err := run2(st, tx.k, l.token[:]); err != nil {
			return err
		}
	}
	a.State, a.Fence, a.Attempt = dibs.Granted, uint64(l.fence), int(l.attempt)
	if l.attempt == 1 {
		return nil
	}
	return tx.readTold(l, a)
}

// readTold answers with what was saved by those before.
func (tx *transaction) readTold(l *lease, a *dibs.Answer) error {
	st := tx.st.told
	st.BindBlob(1, tx.k)
	st.BindBlob(2, l.token[:])
	defer st.Reset()
	_, err := st.Step()
	a.Progress = st.Copy(0)
	return err
}

// answer finds the answers that need neither a lease nor a place: the fingerprint
// differs, a record answers, or the outcome is unknown.
func (tx *transaction) answer(ks *keyState, c *dibs.Claim, a *dibs.Answer) (bool, error) {
	if ks.differs(c.Fingerprint) {
		a.State = dibs.Mismatch
		return true, nil
	}
	if c.MaxAge > 0 {
		if found, err := tx.replay(c, a); found || err != nil {
			return found, err
		}
	}
	if ks.unknown() {
		a.State, a.ID = dibs.Unknown, ks.gone.token.ID()
		return true, nil
	}
	return false, nil
}

// replay answers from the record, if there is one that does, and reports whether
// it did.
func (tx *transaction) replay(c *dibs.Claim, a *dibs.Answer) (bool, error) {
	st := tx.st.record
	st.BindBlob(1, tx.k)
	defer st.Reset()
	row, err := st.Step()
	if err != nil || !row {
		return false, err
	}
	until, age := st.Int(0)>>recordShift, max(0, tx.now-st.Int(2))
	if until <= tx.now || age > micros(c.MaxAge) {
		return false, nil
	}
	var f dibs.Fingerprint
	copy(f[:], st.Bytes(3))
	if f.Differs(c.Fingerprint) {
		a.State = dibs.Mismatch
		return true, nil
	}
	a.State = dibs.Done
	a.Record = dibs.Record{Data: append([]byte{}, st.Bytes(4)...), Age: duration(age), Left: duration(until - tx.now)}
	return true, nil
}

// grant grants the key to a claim, at the place p if there is one. own is the place where
// its own token waits.
func (tx *transaction) grant(ks *keyState, own, p place, c *dibs.Claim, a *dibs.Answer) error {
	l := tx.leaseFor(c)
	l.attempt += ks.count
	l.number = p.number
	tx.leaves = append(tx.leaves, c.Token)
	if own.number != 0 {
		if err := tx.deletePlace(ks, &own); err != nil {
			return err
		}
		st := tx.st.hasNumber
		st.BindBlob(1, tx.k)
		st.BindInt(2, p.number)
		st.BindInt(3, tx.now)
		more, err := st.Run()
		if err != nil {
			return err
		}
		if !more {
			l.number = 0
		}
	}
	if l.number != 0 && c.Hold > 0 {
		tx.dirty = true
		st := tx.st.setHold
		st.BindBlob(1, tx.k)
		st.BindInt(2, l.number)
		st.BindInt(3, micros(c.Hold))
		if _, err := st.Run(); err != nil {
			return err
		}
	}
	if ks.free != 0 {
		if err := tx.setFree(ks, 0); err != nil {
			return err
		}
	}
	if err := tx.insertLease(l, a); err != nil {
		return err
	}
	ks.leases = append(ks.leases, *l)
	ks.freed = true // there may be more permits
	if ks.count == 0 {
		return nil
	}
	if err := run2(tx.st.tellProgress, tx.k, l.token[:]); err != nil {
		return err
	}
	return tx.readTold(l, a)
}

// join takes a place, at the one that the claim is from or at the end, or writes the
// claim into the one that its token has.
func (tx *transaction) join(ks *keyState, own, p place, c *dibs.Claim, a *dibs.Answer) error {
	if own.number == 0 && p.number == 0 {
		next, err := tx.nextNumber(ks)
		if err != nil {
			return err
		}
		full, err := tx.isFull(ks, next)
		if err != nil {
			return err
		}
		if full {
			a.Err = fmt.Errorf("%w: %d wait for the key already", dibs.ErrFull, tx.s.opt.MaxWaiters)
			return nil
		}
		p.number = next
	}
	if err := tx.savePlace(p.number, c); err != nil {
		return err
	}
	if c.Mode == dibs.Queue {
		tx.joins = append(tx.joins, waiter{c.Token, c.Stay})
	}
	return tx.kept(ks, p.number, c, a)
}

// kept answers a token that is kept from the key; number is that of its place, or 0.
func (tx *transaction) kept(ks *keyState, number int64, c *dibs.Claim, a *dibs.Answer) error {
	a.State, a.Queued = dibs.Held, number != 0
	a.Left = duration(tx.left(ks))
	if ks.front == 0 {
		return nil
	}
	if number == 0 {
		var err error
		if number, err = tx.nextNumber(ks); err != nil {
			return err
		}
	}
	a.Ahead = int(max(0, number-ks.front))
	return nil
}
