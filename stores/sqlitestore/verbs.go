package sqlitestore

import (
	"fmt"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/stores/sqlitestore/internal/lite"
)

// claim answers one claim.
func (tx *transaction) claim(c *store.Claim, a *store.Answer) {
	if a.Err = c.Validate(); a.Err != nil {
		return
	}
	tx.use(c.Key, c.Token)
	if (c.Mode == store.Try || c.Mode == store.Queue) && tx.claimPlain(c, a) {
		return
	}
	terms := engine.Terms{MaxWaiters: tx.s.opt.MaxWaiters}
	tx.decide(c.Mode == store.Look, func(st *engine.State) {
		*a = store.Answer{}
		st.Claim(c, &terms, a)
	}, c.Token, c.From)
	switch {
	case a.Err != nil, c.Mode == store.Look, a.State == store.Unknown:
	case a.State != store.Held:
		tx.leaves = append(tx.leaves, c.Token)
	case c.Mode == store.Queue:
		tx.joins = append(tx.joins, waiter{c.Token, c.PlaceTTL})
	}
}

// claimPlain is the short way of a key without leases and places: one statement that finds a
// record, and one that writes the lease if none answers the claim.
func (tx *transaction) claimPlain(c *store.Claim, a *store.Answer) bool {
	if c.MaxAge == 0 {
		if tx.get("inUse", nil, tx.k) {
			return false
		}
	} else if !tx.get("plain", func(row *lite.Stmt) { replay(row, c, a, tx.now) }, tx.k) {
		return false
	} else if a.State != 0 {
		return true
	}
	fence := tx.nextFence()
	a.State, a.Fence, a.Attempt = store.Granted, uint64(fence), 1
	tx.change("insertLease", tx.k, c.Token[:], false, fence, int64(1), tx.now, tx.now+engine.Micros(c.TTL), c.AtMostOnce,
		int64(0), int64(0), int64(c.Permits), int64(c.Weight), bytesOf(&c.Fingerprint), c.Owner.String())
	return true
}

// replay answers from a record, if there is one that the claim accepts.
func replay(row *lite.Stmt, c *store.Claim, a *store.Answer, now int64) {
	r := engine.Record{Ends: row.Int(0) >> recordShift}
	if scan(row, 1, &r.Written, &r.Fingerprint); !r.Accepts(engine.Micros(c.MaxAge), now) {
		return
	}
	if a.State = store.Mismatch; !r.Fingerprint.Differs(c.Fingerprint) {
		a.State, a.Record = store.Done, r.Answer(now, now)
		a.Record.Data = row.Copy(3)
	}
}

// renew prolongs one lease.
func (tx *transaction) renew(r *store.Renewal, answer *error) {
	if *answer = r.Validate(); *answer != nil {
		return
	}
	tx.use(r.Key, r.Token)
	if tx.change("renewLease", tx.k, r.Token[:], tx.now+engine.Micros(r.TTL), tx.now) == 0 {
		*answer = store.ErrLost
	} else if r.Progress != nil {
		tx.change("renewProgress", tx.k, r.Token[:], r.Progress)
	}
}

// settle ends one lease or one place.
func (tx *transaction) settle(x *store.Settlement, answer *error) {
	if *answer = tx.s.checkSettlement(x); *answer != nil {
		return
	}
	tx.use(x.Key, x.Token)
	if x.Outcome != store.Abandon && tx.settlePlain(x) {
		return
	}
	tx.decide(false, func(st *engine.State) {
		if *answer = nil; !st.Settle(x) {
			*answer = store.ErrLost
		}
	}, x.Token)
	tx.leaves = append(tx.leaves, x.Token)
}

// settlePlain is the short way of a key with one lease and nothing else: one statement, and
// one for the record.
func (tx *transaction) settlePlain(x *store.Settlement) bool {
	r := recordOf(x, tx.now)
	if !tx.get("endPlain", func(row *lite.Stmt) { copy(r.Fingerprint[:], row.Bytes(0)) }, tx.k, x.Token[:], tx.now) {
		return false
	}
	tx.dirty = true
	if x.Outcome == store.Keep {
		tx.saveRecord(&r, x.Data)
	}
	return true
}

// recordOf returns the record that a settlement leaves, without its fingerprint.
func recordOf(x *store.Settlement, now int64) engine.Record {
	return engine.Record{Token: x.Token, Written: now, Ends: now + engine.Micros(x.Retention)}
}

// checkSettlement returns the error of an invalid settlement.
func (s *Store) checkSettlement(x *store.Settlement) error {
	if err := x.Validate(); err != nil {
		return err
	}
	if x.Outcome == store.Keep && len(x.Data) > s.opt.MaxRecord {
		return tooLarge(len(x.Data), s.opt.MaxRecord)
	}
	return nil
}

func tooLarge(n, most int) error {
	return fmt.Errorf("%w: the record has %d bytes; it may have at most %d", store.ErrTooLarge, n, most)
}
