package sqlitestore

import (
	"github.com/dibs-go/dibs"
)

// claim answers one claim. The error is one of the file.
func (tx *transaction) claim(c *dibs.Claim, a *dibs.Answer) error {
	if a.Err = c.Validate(); a.Err != nil {
		return nil
	}
	tx.use(c.Key, c.Token)
	if c.Permits == 1 && (c.Mode == dibs.Try || c.Mode == dibs.Queue) {
		idle, err := tx.isIdle(c.MaxAge > 0)
		if err != nil {
			return err
		}
		if idle {
			return tx.claimIdle(c, a)
		}
	}
	return tx.claimBusy(c, a)
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

// claimIdle is the short way to a key that is in nobody's way: one more
// statement.
func (tx *transaction) claimIdle(c *dibs.Claim, a *dibs.Answer) error {
	l := tx.leaseFor(c)
	l.fence, l.since, l.attempt, l.plain = tx.nextFence(), tx.now, 1, true
	if err := tx.insertLease(&l); err != nil {
		return err
	}
	a.State, a.Fence, a.Attempt = dibs.Granted, uint64(l.fence), 1
	return nil
}

func (tx *transaction) leaseFor(c *dibs.Claim) lease {
	return lease{
		token: c.Token, state: held, until: tx.now + micros(c.TTL), permits: int64(c.Permits),
		once: c.AtMostOnce, fingerprint: c.Fingerprint, owner: c.Owner.String(),
	}
}

// claimBusy is the long way: who holds, abandoned, finished or waits for the key
// is asked first, in the order in which that is told below.
func (tx *transaction) claimBusy(c *dibs.Claim, a *dibs.Answer) error {
	ks, err := tx.load()
	if err != nil {
		return err
	}
	if c.Mode == dibs.Look {
		return tx.look(ks, c, a)
	}
	if err := tx.tidy(ks); err != nil {
		return err
	}
	if err := tx.advance(ks); err != nil {
		return err
	}
	own := ks.holder(c.Token)
	switch {
	case own == nil:
	case own.state == held:
		return tx.again(ks, own, c, a)
	case c.Mode == dibs.Reserve:
		return tx.reserveAgain(ks, own, c, a)
	}
	if p := ks.permits(); p != 0 && p != int64(c.Permits) {
		a.State, a.Permits = dibs.PermitsDiffer, int(p)
		return nil
	}
	answered, err := tx.answer(ks, c, a)
	if err != nil {
		return err
	}
	if answered {
		if a.State != dibs.Unknown {
			return tx.dropOut(ks, own, c)
		}
		return nil
	}
	if own != nil {
		return tx.confirm(ks, own, c, a)
	}
	return tx.wait(ks, c, a)
}

// answer finds the answers that need neither a lease nor a place: the fingerprint
// differs, a record answers, or the outcome is unknown.
func (tx *transaction) answer(ks *keyState, c *dibs.Claim, a *dibs.Answer) (bool, error) {
	if ks.differs(c.Token, c.Fingerprint) {
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
	until, age := st.Int(0)>>recordShift, tx.now-st.Int(2)
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

// dropOut ends the token's offer, or its place in the queue, and the place that
// it claims from, because its claim is answered.
func (tx *transaction) dropOut(ks *keyState, own *lease, c *dibs.Claim) error {
	changed := own != nil
	if own != nil {
		if err := tx.endLease(ks, *own); err != nil {
			return err
		}
	}
	for i, t := range [...]dibs.Token{c.Token, c.Redeems} {
		if !ks.hasFront || t.IsZero() {
			continue
		}
		p, err := tx.findWaiter(t)
		if err != nil {
			return err
		}
		if p.seq == 0 || p.dormant >= taken || i == 1 && p.dormant == 0 {
			continue
		}
		if err := tx.deleteWaiter(p.seq); err != nil {
			return err
		}
		tx.leaves = append(tx.leaves, t)
		changed = true
	}
	if !changed {
		return nil
	}
	return tx.advance(ks)
}

// again answers a token that holds the key already: its lease starts anew.
func (tx *transaction) again(ks *keyState, own *lease, c *dibs.Claim, a *dibs.Answer) error {
	if c.Mode == dibs.Reserve {
		// Whoever holds the key has no use for a place, and is told what is in
		// the way: its own lease.
		a.State, a.Left = dibs.Held, duration(own.until-tx.now)
		return nil
	}
	tx.dirty = true
	st := tx.st.extendLease
	st.BindInt(3, tx.now+micros(c.TTL))
	if err := run2(st, tx.k, own.token[:]); err != nil {
		return err
	}
	return tx.granted(ks, own, a)
}

// confirm turns an offer into a lease.
func (tx *transaction) confirm(ks *keyState, own *lease, c *dibs.Claim, a *dibs.Answer) error {
	l := tx.leaseFor(c)
	l.plain = own.plain
	tx.dirty = true
	st := tx.st.confirmLease
	st.BindInt(3, l.until)
	st.BindBool(4, l.plain)
	st.BindBool(5, l.once)
	bindFingerprint(st, 6, &l.fingerprint)
	st.BindString(7, l.owner)
	if err := run2(st, tx.k, own.token[:]); err != nil {
		return err
	}
	return tx.granted(ks, own, a)
}

// granted answers with a lease.
func (tx *transaction) granted(ks *keyState, l *lease, a *dibs.Answer) error {
	a.State, a.Fence, a.Attempt = dibs.Granted, uint64(l.fence), int(l.attempt)
	tx.leaves = append(tx.leaves, l.token)
	if !ks.hasGone || ks.gone.plain || ks.gone.fence > l.fence {
		return nil
	}
	st := tx.st.progress
	st.BindBlob(1, tx.k)
	st.BindBlob(2, ks.gone.token[:])
	defer st.Reset()
	row, err := st.Step()
	if row {
		a.Progress = st.Copy(0)
	}
	return err
}

// reserveAgain turns an offer back into the place that it came from, because
// its token wants to be asked later.
func (tx *transaction) reserveAgain(ks *keyState, own *lease, c *dibs.Claim, a *dibs.Answer) error {
	seq := own.seq
	if err := tx.endLease(ks, *own); err != nil {
		return err
	}
	if err := tx.insertWaiter(seq, c); err != nil {
		return err
	}
	if err := tx.advance(ks); err != nil {
		return err
	}
	return tx.inQueue(ks, seq, c, a, asIts(c, c.Place))
}

// look answers a Look from the state as it is. What has ended and was not
// noticed yet counts as noticed, but nothing is written.
func (tx *transaction) look(ks *keyState, c *dibs.Claim, a *dibs.Answer) error {
	if ks.unwritten() {
		if err := tx.tidy(ks); err != nil {
			return err
		}
	}
	for i := range ks.ran {
		if l := ks.ran[i]; l.state == held && (!ks.hasGone || l.fence > ks.gone.fence) {
			l.state = abandoned
			if l.once {
				l.state = unknown
			}
			ks.gone, ks.hasGone = l, true
		}
	}
	if ks.hasGone && ks.gone.state == abandoned && ks.gone.until+memory <= tx.now {
		ks.hasGone = false
	}
	if err := tx.readLiveFront(ks); err != nil {
		return err
	}
	own := ks.holder(c.Token)
	if own != nil && own.state == held {
		a.State = dibs.Free
		return nil
	}
	if p := ks.permits(); p != 0 && p != int64(c.Permits) {
		a.State, a.Permits = dibs.PermitsDiffer, int(p)
		return nil
	}
	if answered, err := tx.answer(ks, c, a); answered || err != nil {
		return err
	}
	p, _, err := tx.redeemed(ks, c)
	if err != nil {
		return err
	}
	if !p.alive(tx.now) {
		p = spot{}
	}
	next := !ks.hasFront || p.seq == ks.front.seq
	if own != nil || p.dormant < taken && next && len(ks.live) < c.Permits {
		a.State = dibs.Free
		return nil
	}
	a.Queued = p.seq != 0
	if p.seq == 0 {
		if p.seq, err = tx.nextSeq(ks); err != nil {
			return err
		}
	}
	err = tx.inQueue(ks, p.seq, c, a, nil)
	a.Idle = a.Idle && p.dormant < taken
	return err
}
