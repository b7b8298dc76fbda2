package sqlitestore

import (
	"fmt"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

// recordShift is how many bits of a record's id are a serial number; the rest is its end.
const recordShift = 10

// renew prolongs one lease.
func (tx *transaction) renew(r *dibs.Renewal, answer *error) {
	if *answer = r.Validate(); *answer != nil {
		return
	}
	tx.use(r.Key, r.Token)
	if tx.change("renewLease", tx.k, r.Token[:], tx.now+micros(r.TTL), tx.now) == 0 {
		*answer = dibs.ErrLost
	} else if r.Progress != nil {
		tx.change("saveProgress", tx.k, r.Token[:], r.Progress)
	}
}

// settle ends one lease or one place.
func (tx *transaction) settle(x *dibs.Settlement, answer *error) {
	if *answer = tx.s.checkSettlement(x); *answer != nil {
		return
	}
	tx.use(x.Key, x.Token)
	if x.Outcome != dibs.Abandon && tx.settlePlain(x) {
		return
	}
	ks := tx.load()
	if !tx.settleFull(ks, x) {
		*answer = dibs.ErrLost
	}
	tx.serve(ks)
}

// checkSettlement returns the error of an invalid settlement.
func (s *Store) checkSettlement(x *dibs.Settlement) error {
	if err := x.Validate(); err != nil {
		return err
	}
	if x.Outcome == dibs.Keep && len(x.Data) > s.opt.MaxRecord {
		return tooLarge(len(x.Data), s.opt.MaxRecord)
	}
	return nil
}

func tooLarge(n, most int) error {
	return fmt.Errorf("%w: the record has %d bytes; it may have at most %d", dibs.ErrTooLarge, n, most)
}

// settlePlain is the fast path of a key with one lease and nothing else: one statement,
// and one for the record.
func (tx *transaction) settlePlain(x *dibs.Settlement) bool {
	var f dibs.Fingerprint
	if !tx.get("endPlain", func(row *lite.Stmt) { copy(f[:], row.Bytes(0)) }, tx.k, x.Token[:], tx.now) {
		return false
	}
	tx.dirty = true
	if x.Outcome == dibs.Keep {
		tx.saveRecord(x.Token, &f, x.Data, micros(x.Retention))
	}
	return true
}

// settleFull is the full path. It returns false when the token has neither a lease nor a
// place.
func (tx *transaction) settleFull(ks *keyState, x *dibs.Settlement) bool {
	own := ks.holder(x.Token)
	switch {
	case own == nil && x.Outcome == dibs.Keep:
		return tx.keptBefore(x.Token)
	case own == nil:
		p := tx.findPlace(ks, x.Token)
		if p.number == 0 {
			return false
		}
		tx.leaves = append(tx.leaves, x.Token)
		tx.deletePlace(ks, &p)
	case x.Outcome == dibs.Abandon:
		tx.abandon(ks, *own, tx.now)
	case x.Outcome == dibs.Undo:
		tx.deleteLease(ks, x.Token)
	default:
		l := *own
		tx.end(ks, l)
		if x.Outcome == dibs.Keep {
			tx.keep(l.token, &l.fingerprint, x.Data, micros(x.Retention))
		}
	}
	return true
}

// keep writes a record and wakes the waiters that it may answer.
func (tx *transaction) keep(t dibs.Token, f *dibs.Fingerprint, data []byte, retention int64) {
	tx.saveRecord(t, f, data, retention)
	tx.wakeWaiters(1)
}

func (tx *transaction) saveRecord(t dibs.Token, f *dibs.Fingerprint, data []byte, retention int64) {
	if tx.err != nil {
		return
	}
	tx.dirty = true
	tx.err = withID(tx.now+retention, &tx.serial, func(id int64) error {
		return tx.st["saveRecord"].Run(id, tx.k, t[:], tx.now, bytesOf(f), data)
	})
}

// withID calls save with unused ids for a record that ends at that time, until one is
// free.
func withID(end int64, serial *int64, save func(id int64) error) error {
	for step := int64(1); ; step = min(2*step, 1<<20) {
		// A serial number that overflows makes the record end 1 µs later, because all
		// numbers of this one may be taken.
		*serial += step
		err := save(end<<recordShift + *serial)
		if e := sqliteError(err); e == nil || e.Extended != lite.KeyTaken {
			return err
		}
		// Another record has the id. If the clock stands still, many ids in a row are
		// taken, so each step is longer.
	}
}

// keptBefore reports whether the record is the token's: then its first settlement
// succeeded, but the answer was lost.
func (tx *transaction) keptBefore(t dibs.Token) (kept bool) {
	tx.get("record", func(row *lite.Stmt) {
		kept = row.Int(0)>>recordShift > tx.now && dibs.Token(row.Bytes(1)) == t
	}, tx.k)
	return kept
}
