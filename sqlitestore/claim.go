package sqlitestore

import (
	"fmt"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

// claim answers one claim.
func (tx *transaction) claim(c *dibs.Claim, a *dibs.Answer) {
	if a.Err = c.Validate(); a.Err != nil {
		return
	}
	tx.use(c.Key, c.Token)
	if (c.Mode == dibs.Try || c.Mode == dibs.Queue) && !tx.get("inUse", nil, tx.k, c.MaxAge > 0) {
		// The fast path of an unused key: one more statement.
		tx.insertLease(tx.leaseFor(c), a)
		return
	}
	ks := tx.load()
	tx.ask(ks, c, a)
	tx.serve(ks)
}

// leaseFor returns the lease of a claim, as its first attempt.
func (tx *transaction) leaseFor(c *dibs.Claim) *lease {
	return &lease{
		token: c.Token, until: tx.now + micros(c.TTL), fence: tx.nextFence(), since: tx.now, attempt: 1,
		permits: int64(c.Permits), weight: int64(c.Weight),
		once: c.AtMostOnce, fingerprint: c.Fingerprint, owner: c.Owner.String(),
	}
}

func (tx *transaction) insertLease(l *lease, a *dibs.Answer) {
	a.State, a.Fence, a.Attempt = dibs.Granted, uint64(l.fence), int(l.attempt)
	tx.change("insertLease", tx.k, l.token[:], l.until, l.fence, l.since, l.attempt,
		l.permits, l.weight, l.number, l.once, bytesOf(&l.fingerprint), l.owner)
}

// ask answers a claim, after load.
func (tx *transaction) ask(ks *keyState, c *dibs.Claim, a *dibs.Answer) {
	if l := ks.holder(c.Token); l != nil {
		tx.again(l, c, a)
		return
	}
	own := tx.findPlace(ks, c.Token)
	p := own
	if p.number == 0 {
		if p = tx.findPlace(ks, c.From); !p.reserved {
			p = place{}
		}
	}
	if tx.answer(ks, c, a) {
		if own.number != 0 && c.Mode != dibs.Look && a.State != dibs.Unknown {
			tx.leaves = append(tx.leaves, c.Token)
			tx.deletePlace(ks, &own)
		}
		return
	}
	taken := ks.taken(p.number)
	turn := ks.front == p.number && !taken
	switch {
	case c.Mode == dibs.Reserve:
		tx.join(ks, own, c, a)
		return
	case !ks.hasRoom(int64(c.Permits), int64(c.Weight)):
	case turn && c.Mode == dibs.Look:
		a.State, a.Queued = dibs.Free, p.number != 0
		return
	case turn:
		tx.grant(ks, own, p, c, a)
		return
	case c.Mode != dibs.Look && ks.isReserved() && ks.free == 0 && !taken:
		tx.setFree(ks, max(1, tx.now))
	}
	if c.Mode == dibs.Queue {
		tx.join(ks, p, c, a)
	} else {
		tx.held(ks, p.number, a)
	}
}

// again answers a token that already holds the key, and renews its lease.
func (tx *transaction) again(l *lease, c *dibs.Claim, a *dibs.Answer) {
	if c.Mode == dibs.Look {
		a.State = dibs.Free
		return
	}
	if c.Mode != dibs.Reserve {
		tx.change("renewLease", tx.k, l.token[:], tx.now+micros(c.TTL), tx.now)
	}
	a.State, a.Fence, a.Attempt = dibs.Granted, uint64(l.fence), int(l.attempt)
	tx.readInherited(l, a)
}

// readInherited answers with the progress of earlier attempts.
func (tx *transaction) readInherited(l *lease, a *dibs.Answer) {
	if l.attempt > 1 {
		tx.get("inherited", func(row *lite.Stmt) { a.Progress = row.Copy(0) }, tx.k, l.token[:])
	}
}

// answer gives answers that need neither a lease nor a place: another fingerprint, a
// record, an unknown outcome. It reports whether it gave one.
func (tx *transaction) answer(ks *keyState, c *dibs.Claim, a *dibs.Answer) bool {
	if ks.differs(c.Fingerprint) {
		a.State = dibs.Mismatch
		return true
	}
	if c.MaxAge > 0 {
		tx.get("record", func(row *lite.Stmt) { tx.replay(row, c, a) }, tx.k)
	}
	if a.State == 0 && ks.unknown() {
		a.State, a.ID = dibs.Unknown, ks.abandoned.token.ID()
	}
	return a.State != 0
}

// replay answers from the record, if the claim accepts it.
func (tx *transaction) replay(row *lite.Stmt, c *dibs.Claim, a *dibs.Answer) {
	until, age := row.Int(0)>>recordShift, max(0, tx.now-row.Int(2))
	if until <= tx.now || age > micros(c.MaxAge) {
		return
	}
	var f dibs.Fingerprint
	copy(f[:], row.Bytes(3))
	if f.Differs(c.Fingerprint) {
		a.State = dibs.Mismatch
		return
	}
	a.State = dibs.Done
	a.Record = dibs.Record{Data: row.Copy(4), Age: duration(age), Left: duration(until - tx.now)}
}

// grant grants the key to a claim, at the place p if there is one. own is the place of
// the claim's token.
func (tx *transaction) grant(ks *keyState, own, p place, c *dibs.Claim, a *dibs.Answer) {
	l := tx.leaseFor(c)
	l.attempt += ks.count
	l.number = p.number
	tx.leaves = append(tx.leaves, c.Token)
	if own.number != 0 {
		tx.deletePlace(ks, &own)
		if !tx.get("hasNumber", nil, tx.k, p.number, tx.now) {
			l.number = 0
		}
	}
	if l.number != 0 && c.Hold > 0 {
		tx.change("setHold", tx.k, l.number, micros(c.Hold))
	}
	if ks.free != 0 {
		tx.setFree(ks, 0)
	}
	tx.insertLease(l, a)
	if l.attempt > 1 {
		tx.change("inheritProgress", tx.k, l.token[:])
	}
	tx.readInherited(l, a)
	ks.leases = append(ks.leases, *l)
	ks.freed = true // permits may be left
}

// join makes a place at p or at the end of the queue, or updates the place of the claim's
// token.
func (tx *transaction) join(ks *keyState, p place, c *dibs.Claim, a *dibs.Answer) {
	if p.number == 0 {
		if p.number = tx.nextNumber(ks); tx.isFull(ks, p.number) {
			a.Err = fmt.Errorf("%w: the key's queue has %d places already", dibs.ErrFull, tx.s.opt.MaxWaiters)
			return
		}
	}
	tx.change("savePlace", tx.k, p.number, c.Token[:], c.Mode == dibs.Reserve, tx.now+micros(c.Stay),
		int64(c.Permits), int64(c.Weight), micros(c.MaxAge), micros(c.Hold), tx.now, c.Owner.String())
	if c.Mode == dibs.Queue {
		tx.joins = append(tx.joins, waiter{c.Token, c.Stay})
	}
	tx.held(ks, p.number, a)
}

// held answers a token that does not get the key. number is that of its place, or 0.
func (tx *transaction) held(ks *keyState, number int64, a *dibs.Answer) {
	a.State, a.Queued, a.Left = dibs.Held, number != 0, duration(tx.left(ks))
	if ks.front == 0 {
		return
	}
	if number == 0 {
		number = tx.nextNumber(ks)
	}
	a.Ahead = int(max(0, number-ks.front))
}
