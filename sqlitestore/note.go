package sqlitestore

import (
	"context"
	"slices"

	"github.com/dibs-go/dibs"
)

// noteSQL settles a lease in a transaction of the application, by as little as that
// takes: it notes down in the lease's row how the lease has ended, and when. From
// that transaction's commit on, the lease has ended so. What follows from it, for the
// record and for those who wait, is up to the next of our own transactions to read
// the key's leases (see transaction.tidy). So a settlement is written in one place,
// and the application's transaction has one statement more.
//
// The short ways of a claim, a renewal and a settlement need not know: they are for
// keys that have no lease, or one that is held.
//
// Its now is that of transaction.begin; it is NULL, and nothing is noted, when the
// file is tied to another host. It returns whether somebody waits for the key, and no
// row when nothing was noted.
const noteSQL = `UPDATE @lease SET state = 4, until = now.at, outcome = ?3, retention = ?4, data = ?5
FROM (SELECT max(?6 + offset, clock) AS at FROM @meta WHERE one = 1 AND boot = ?7) AS now
WHERE k = ?1 AND token = ?2 AND state = 0 AND until > now.at
RETURNING EXISTS (SELECT 1 FROM @waiter WHERE k = ?1)`

// noteArgs are the parameters of noteSQL.
func (s *Store) noteArgs(x *dibs.Settlement) []any {
	data := x.Data
	if data == nil {
		data = []byte{} // nil would be NULL
	}
	return []any{
		appendKey(nil, x.Key), x.Token[:], int64(x.Outcome), micros(x.Retention), data,
		s.clock.monotonic(), []byte(s.boot),
	}
}

// applyNote does what the settlement of a lease means that was noted down. The lease is
// not among the live ones.
func (tx *transaction) applyNote(ks *keyState, l lease) error {
	x, err := tx.readNote(&l)
	if err != nil {
		return err
	}
	// After a reboot store time may be behind: it goes on from where our own
	// transactions have last seen it.
	at := min(l.until, tx.now)
	l.state = held
	switch x.Outcome {
	case dibs.Abandon:
		return tx.abandon(ks, l, at)
	case dibs.Undo:
		return tx.undo(ks, l)
	}
	return tx.end(ks, l, &x, at)
}

// readNote reads how a lease was settled.
func (tx *transaction) readNote(l *lease) (x dibs.Settlement, err error) {
	st := tx.st.settledLease
	st.BindBlob(1, tx.k)
	st.BindBlob(2, l.token[:])
	defer st.Reset()
	if _, err := st.Step(); err != nil {
		return x, err
	}
	x.Outcome, x.Retention, x.Data = dibs.Outcome(st.Int(0)), duration(st.Int(1)), st.Copy(2)
	return x, nil
}

// unwritten reports whether something has happened that is easier to write down than to
// imagine: places stand again, or a lease was settled in a transaction.
func (ks *keyState) unwritten() bool {
	return slices.ContainsFunc(ks.ran, func(l lease) bool { return l.seq != 0 || l.state == noted })
}

// notes is how many of the leases were settled in transactions.
func (ks *keyState) notes() int {
	n := 0
	for i := range ks.ran {
		if ks.ran[i].state == noted {
			n++
		}
	}
	return n
}

// catchUp does what the settlement of a key means that was noted down: at once when
// somebody waits, and otherwise in the next transaction that there is for something
// else. Whoever reads the key before does it, and if it fails, whoever does after.
func (s *Store) catchUp(key dibs.Key, waits bool) {
	k := appendKey(nil, key)
	if waits {
		s.enqueue(s.follows([][]byte{k}))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.later = append(s.later, k)
}

// follows returns a call that nobody waits for, which does what follows by itself for
// the keys.
func (s *Store) follows(keys [][]byte) *call {
	c := newCall()
	c.left = true
	c.work = func(tx *transaction) error { return tx.followAll(keys) }
	return c
}

func (tx *transaction) followAll(keys [][]byte) error {
	for _, k := range keys {
		if err := tx.follow(k); err != nil {
			return err
		}
	}
	return nil
}

// follow does what follows by itself for a key.
func (tx *transaction) follow(k []byte) error {
	tx.k = append(tx.k[:0], k...)
	tx.asker = dibs.Token{}
	ks, err := tx.load()
	if err != nil {
		return err
	}
	if err := tx.tidy(ks); err != nil {
		return err
	}
	return tx.advance(ks)
}

// applyNotes does what the settlements of these keys mean, if there are any.
func (s *Store) applyNotes(ctx context.Context, keys [][]byte) error {
	return s.work(ctx, func(tx *transaction) error { return tx.followAll(keys) })
}
