package sqlitestore

import (
	"errors"
	"fmt"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

// recordShift makes room for a serial number below a record's end in its id.
const recordShift = 10

// renew lets one lease last longer. The error is one of the file.
func (tx *transaction) renew(r *dibs.Renewal, answer *error) error {
	if *answer = r.Validate(); *answer != nil {
		return nil
	}
	tx.use(r.Key, r.Token)
	st := tx.st.renewLease
	st.BindInt(3, tx.now+micros(r.TTL))
	st.BindInt(4, tx.now)
	if err := run2(st, tx.k, r.Token[:]); err != nil {
		return err
	}
	if tx.s.conn.Changes() == 0 {
		*answer = dibs.ErrLost
		return nil
	}
	tx.dirty = true
	if r.Progress == nil {
		return nil
	}
	tx.st.saveProgress.BindBlob(3, r.Progress)
	return run2(tx.st.saveProgress, tx.k, r.Token[:])
}

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
	ks, err := tx.load()
	if err != nil {
		return err
	}
	done, err := tx.settleBusy(ks, x)
	if err != nil {
		return err
	}
	if !done {
		*answer = dibs.ErrLost
	}
	return tx.serve(ks)
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

// settlePlain is the short way of a lease of a key that nobody waits for and of which
// nothing is remembered: one statement, and one for the record.
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
		err = tx.saveRecord(x.Token, &f, x.Data, micros(x.Retention))
	}
	return true, err
}

// settleBusy is the long way. It reports false when the token neither holds the
// key nor waits for it.
func (tx *transaction) settleBusy(ks *keyState, x *dibs.Settlement) (bool, error) {
	own := ks.holder(x.Token)
	switch {
	case own == nil && x.Outcome == dibs.Keep:
		return tx.keptBefore(x.Token)
	case own == nil:
		return tx.giveUp(ks, x.Token)
	case x.Outcome == dibs.Abandon:
		return true, tx.abandon(ks, own, tx.now)
	case x.Outcome == dibs.Undo:
		return true, tx.deleteLease(ks, x.Token)
	}
	l := *own
	if err := tx.end(ks, l); err != nil || x.Outcome == dibs.Release {
		return true, err
	}
	return true, tx.keep(l.token, &l.fingerprint, x.Data, micros(x.Retention))
}

// giveUp takes the token's place from it.
func (tx *transaction) giveUp(ks *keyState, t dibs.Token) (bool, error) {
	p, err := tx.findPlace(ks, t)
	if err != nil || p.number == 0 {
		return false, err
	}
	tx.leaves = append(tx.leaves, t)
	return true, tx.deletePlace(ks, &p)
}

// keep writes a record, and sends the waiters that it may answer to read it.
func (tx *transaction) keep(t dibs.Token, f *dibs.Fingerprint, data []byte, retention int64) error {
	if err := tx.saveRecord(t, f, data, retention); err != nil {
		return err
	}
	return tx.wakeWaiters(1)
}

func (tx *transaction) saveRecord(t dibs.Token, f *dibs.Fingerprint, data []byte, retention int64) error {
	tx.dirty = true
	st := tx.st.saveRecord
	return withID(tx.now+retention, &tx.serial, func(id int64) error {
		st.BindInt(1, id)
		st.BindBlob(2, tx.k)
		st.BindBlob(3, t[:])
		st.BindInt(4, tx.now)
		bindFingerprint(st, 5, f)
		st.BindBlob(6, data)
		_, err := st.Run()
		return err
	}, func(err error) bool {
		e, ok := errors.AsType[*lite.Error](err)
		return ok && e.Extended == lite.KeyTaken
	})
}

// withID calls save with ids for a record that ends then until one is free, which is
// when save does not fail with an error that is a violation.
func withID(end int64, serial *int64, save func(id int64) error, violation func(error) bool) error {
	for step := int64(1); ; step = min(2*step, 1<<20) {
		// Serial numbers that run over make the record end a microsecond later,
		// because those of this one may all be taken.
		*serial += step
		err := save(end<<recordShift + *serial)
		if !violation(err) {
			return err
		}
		// Another transaction's record has the id. There may be many in a row,
		// if the clock stands; so the next look is farther away each time.
	}
}

// keptBefore reports whether the key's record is the token's: its settlement arrived
// before, and only the answer was lost.
func (tx *transaction) keptBefore(t dibs.Token) (bool, error) {
	st := tx.st.record
	st.BindBlob(1, tx.k)
	defer st.Reset()
	row, err := st.Step()
	return row && st.Int(0)>>recordShift > tx.now && dibs.Token(st.Bytes(1)) == t, err
}
