package sqlitestore

import (
	"fmt"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

// recordShift makes room for a serial number below a record's end in its id.
const recordShift = 10

// settle ends one lease, or gives up one place. The error is one of the file.
func (tx *transaction) settle(x *dibs.Settlement, answer *error) error {
	if *answer = tx.s.checkSettlement(x); *answer != nil {
		return nil
	}
	tx.use(x.Key, x.Token)
	if x.Outcome != dibs.Abandon {
		if done, err := tx.settlePlain(x); done || err != nil {
			return err
		}
	}
	done, err := tx.settleBusy(x)
	if !done && err == nil {
		*answer = dibs.ErrLost
	}
	return err
}

// checkSettlement says why a settlement is refused without looking, or nil.
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

// settlePlain is the short way of a lease that has left nothing behind and that
// nobody waits for: one statement, and one for the record.
func (tx *transaction) settlePlain(x *dibs.Settlement) (bool, error) {
	st := tx.st.endPlain
	st.BindBlob(1, tx.k)
	st.BindBlob(2, x.Token[:])
	st.BindInt(3, tx.now)
	row, err := st.Step()
	if err != nil || !row {
		st.Reset()
		return false, err
	}
	var f dibs.Fingerprint
	copy(f[:], st.Bytes(0))
	_, err = st.Step() // the rest of the statement
	st.Reset()
	tx.dirty = true
	if err == nil && x.Outcome == dibs.Keep {
		err = tx.saveRecord(x.Token, &f, x.Data, tx.now, micros(x.Retention))
	}
	return true, err
}

// settleBusy is the long way. It reports false when the token neither holds the
// key nor waits for it.
func (tx *transaction) settleBusy(x *dibs.Settlement) (bool, error) {
	ks, err := tx.load()
	if err != nil {
		return false, err
	}
	if err := tx.tidy(ks); err != nil {
		return false, err
	}
	own := ks.holder(x.Token)
	switch {
	case own == nil && x.Outcome == dibs.Keep:
		return tx.kept(x.Token)
	case own == nil:
		return tx.giveUp(ks, x.Token)
	case own.state == offered && x.Outcome == dibs.Keep:
		// It has yet to hear that it was granted, so there is nothing that it
		// can have done for a record.
		return false, nil
	case own.state == offered:
		err = tx.deleteLease(own)
		ks.remove(x.Token)
	case x.Outcome == dibs.Abandon:
		gone := *own
		ks.remove(x.Token)
		err = tx.abandon(ks, gone, tx.now)
	case x.Outcome == dibs.Undo:
		err = tx.undo(ks, *own)
	default:
		err = tx.end(ks, *own, x, tx.now)
	}
	if err != nil {
		return false, err
	}
	return true, tx.advance(ks)
}

// undo ends a lease as if it had not been granted. The one that was abandoned
// before it is still there.
func (tx *transaction) undo(ks *keyState, own lease) error {
	ks.remove(own.token)
	if err := tx.standAgain(&own, tx.now); err != nil {
		return err
	}
	return tx.deleteLease(&own)
}

// end ends a lease cleanly, at that time: nothing counts as abandoned any more.
func (tx *transaction) end(ks *keyState, own lease, x *dibs.Settlement, at int64) error {
	if err := tx.endLease(ks, own); err != nil {
		return err
	}
	if err := tx.forget(ks); err != nil || x.Outcome != dibs.Keep {
		return err
	}
	return tx.keep(own.token, &own.fingerprint, x.Data, at, micros(x.Retention))
}

// endLease deletes a lease or an offer, and gives up the place that it has taken.
func (tx *transaction) endLease(ks *keyState, own lease) error {
	ks.remove(own.token)
	if own.state == held && own.seq != 0 {
		if err := tx.giveUpPlace(own.seq); err != nil {
			return err
		}
	}
	return tx.deleteLease(&own)
}

// keep writes a record, and sends the waiters that it answers to read it, unless it is
// forgotten already.
func (tx *transaction) keep(t dibs.Token, f *dibs.Fingerprint, data []byte, at, retention int64) error {
	if err := tx.saveRecord(t, f, data, at, retention); err != nil || at+retention <= tx.now {
		return err
	}
	var answered []dibs.Token
	st := tx.st.deleteAnswered
	st.BindBlob(1, tx.k)
	for {
		row, err := st.Step()
		if err != nil || !row {
			st.Reset()
			if err != nil {
				return err
			}
			break
		}
		answered = append(answered, dibs.Token(st.Bytes(0)))
	}
	for _, t := range answered {
		if err := tx.wake(t); err != nil {
			return err
		}
	}
	return nil
}

func (tx *transaction) saveRecord(t dibs.Token, f *dibs.Fingerprint, data []byte, at, retention int64) error {
	tx.dirty = true
	st := tx.st.saveRecord
	for step := int64(1); ; step = min(2*step, 1<<20) {
		// Serial numbers that run over make the record end a microsecond later,
		// because those of this one may all be taken.
		tx.serial += step
		st.BindInt(1, (at+retention)<<recordShift+tx.serial)
		st.BindBlob(2, tx.k)
		st.BindBlob(3, t[:])
		st.BindInt(4, at)
		bindFingerprint(st, 5, f)
		st.BindBlob(6, data)
		_, err := st.Run()
		if !isCode(err, lite.Violation) {
			return err
		}
		// Another transaction's record has the id. There may be many in a row,
		// if the clock stands; so the next look is farther away each time.
	}
}

// kept reports whether the key's record is the token's: its settlement arrived
// before, and only the answer was lost.
func (tx *transaction) kept(t dibs.Token) (bool, error) {
	st := tx.st.record
	st.BindBlob(1, tx.k)
	defer st.Reset()
	row, err := st.Step()
	return row && st.Int(0)>>recordShift > tx.now && dibs.Token(st.Bytes(1)) == t, err
}

// giveUp takes the token out of the queue, or its place from the lease that has
// taken it.
func (tx *transaction) giveUp(ks *keyState, t dibs.Token) (bool, error) {
	p, err := tx.findWaiter(t)
	if err != nil || p.seq == 0 {
		return false, err
	}
	if err := tx.giveUpPlace(p.seq); err != nil {
		return false, err
	}
	tx.leaves = append(tx.leaves, t)
	return p.alive(tx.now), tx.advance(ks)
}
