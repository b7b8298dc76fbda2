package sqlitestore

import (
	"cmp"
	"slices"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

// remembered is how long an abandoned lease is remembered, in microseconds.
const remembered = int64(dibs.AbandonedMemory / 1000)

// lease is a row of the table lease, but for what was saved.
type lease struct {
	token           dibs.Token
	until           int64
	fence           int64
	since           int64
	attempt         int64
	permits, weight int64
	number          int64 // of the reserved place that it was granted at; 0: none
	once            bool
	fingerprint     dibs.Fingerprint
	owner           string
}

// keyState is what the file knows of one key, up to now, but for its record.
type keyState struct {
	leases []lease

	known bool  // the table memory has a row
	free  int64 // since when the key is free and kept for a reserved place; 0: it is not
	count int64 // how many leases in a row were abandoned
	gone  lease // the last one

	queue
	freed     bool // something has changed that the next waiter may have waited for
	forgotten bool // what was abandoned has just been forgotten
}

// load reads the key's state, and writes down what has happened by itself: leases ran
// out, places are over, what was abandoned long ago is forgotten.
func (tx *transaction) load() (*keyState, error) {
	ks := &tx.state
	*ks = keyState{leases: ks.leases[:0], queue: queue{numbers: ks.numbers[:0], waiters: ks.waiters[:0], dead: ks.dead[:0]}}
	if err := tx.readLeases(ks); err != nil {
		return nil, err
	}
	if err := tx.readMemory(ks); err != nil {
		return nil, err
	}
	if ks.count > 0 && !ks.gone.once && ks.gone.until+remembered <= tx.now {
		ks.forgotten = true
		if err := tx.forget(ks); err != nil {
			return nil, err
		}
	}
	if err := tx.findFront(ks); err != nil {
		return nil, err
	}
	if ks.free != 0 && ks.first == 0 {
		return ks, tx.setFree(ks, 0)
	}
	return ks, nil
}

func (tx *transaction) readLeases(ks *keyState) error {
	var ran []lease
	st := tx.st.leases
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
		l := lease{
			until: st.Int(1), fence: st.Int(2), since: st.Int(3), attempt: st.Int(4), permits: st.Int(5),
			weight: st.Int(6), number: st.Int(7), once: st.Bool(8), owner: string(st.Bytes(10)),
		}
		copy(l.token[:], st.Bytes(0))
		copy(l.fingerprint[:], st.Bytes(9))
		if l.until > tx.now {
			ks.leases = append(ks.leases, l)
		} else {
			ran = append(ran, l)
		}
	}
	slices.SortFunc(ran, func(a, b lease) int { return cmp.Compare(a.until, b.until) })
	for i := range ran {
		if err := tx.abandon(ks, &ran[i], ran[i].until); err != nil {
			return err
		}
	}
	return nil
}

func (tx *transaction) readMemory(ks *keyState) error {
	st := tx.st.memory
	st.BindBlob(1, tx.k)
	defer st.Reset()
	row, err := st.Step()
	if err != nil || !row {
		return err
	}
	ks.known, ks.free, ks.count = true, st.Int(0), st.Int(1)
	ks.gone = lease{
		until: st.Int(3), fence: st.Int(4), since: st.Int(5), attempt: ks.count, once: st.Bool(6), owner: string(st.Bytes(8)),
	}
	copy(ks.gone.token[:], st.Bytes(2))
	copy(ks.gone.fingerprint[:], st.Bytes(7))
	return nil
}

// abandon ends a lease at that time as if its holder had crashed.
func (tx *transaction) abandon(ks *keyState, l *lease, at int64) error {
	st := tx.st.abandon
	st.BindInt(3, at)
	if err := run2(st, tx.k, l.token[:]); err != nil {
		return err
	}
	if l.once { // nobody's turn comes any more; they ask to be told so
		if err := tx.wakeWaiters(0); err != nil {
			return err
		}
	}
	if err := tx.deleteLease(ks, l.token); err != nil {
		return err
	}
	return tx.readMemory(ks)
}

// deleteLease deletes a lease and nothing else.
func (tx *transaction) deleteLease(ks *keyState, t dibs.Token) error {
	tx.dirty, ks.freed = true, true
	ks.leases = slices.DeleteFunc(ks.leases, func(l lease) bool { return l.token == t })
	return run2(tx.st.deleteLease, tx.k, t[:])
}

// end ends a lease cleanly, and with it the place that it was granted at. Nothing counts
// as abandoned any more.
func (tx *transaction) end(ks *keyState, l lease) error {
	if err := tx.deleteLease(ks, l.token); err != nil {
		return err
	}
	if l.number != 0 {
		if err := tx.deleteNumber(l.number); err != nil {
			return err
		}
	}
	return tx.forget(ks)
}

// forget deletes what was abandoned.
func (tx *transaction) forget(ks *keyState) error {
	ks.count, ks.gone = 0, lease{}
	return tx.remember(ks, tx.st.forget)
}

// setFree sets since when the key is free and kept for a reserved place; 0: it is not.
func (tx *transaction) setFree(ks *keyState, since int64) error {
	if ks.free = since; since == 0 {
		return tx.remember(ks, tx.st.clearFree)
	}
	ks.known, tx.dirty = true, true
	st := tx.st.setFree
	st.BindBlob(1, tx.k)
	st.BindInt(2, since)
	_, err := st.Run()
	return err
}

// remember runs a statement that takes something out of the memory, if there is anything.
func (tx *transaction) remember(ks *keyState, st *lite.Stmt) error {
	if !ks.known {
		return nil
	}
	tx.dirty = true
	for _, st := range []*lite.Stmt{st, tx.st.deleteMemory} {
		st.BindBlob(1, tx.k)
		if _, err := st.Run(); err != nil {
			return err
		}
	}
	return nil
}

// holder returns the token's lease, or nil.
func (ks *keyState) holder(t dibs.Token) *lease {
	for i := range ks.leases {
		if ks.leases[i].token == t {
			return &ks.leases[i]
		}
	}
	return nil
}

// unknown reports whether nobody may be granted before somebody resolves the key.
func (ks *keyState) unknown() bool { return ks.count > 0 && ks.gone.once }

// differs reports whether the fingerprint is not that of those who hold the key or of
// whoever abandoned it last.
func (ks *keyState) differs(f dibs.Fingerprint) bool {
	return slices.ContainsFunc(ks.leases, func(l lease) bool { return l.fingerprint.Differs(f) }) ||
		ks.count > 0 && ks.gone.fingerprint.Differs(f)
}

// hasRoom reports whether the leases leave room for a claim with that many permits and
// that weight.
func (ks *keyState) hasRoom(permits, weight int64) bool {
	for i := range ks.leases {
		weight += ks.leases[i].weight
		if ks.leases[i].permits != permits {
			return false
		}
	}
	return weight <= permits
}

// left returns the time until the first lease ends, 0 without one.
func (tx *transaction) left(ks *keyState) int64 {
	if len(ks.leases) == 0 {
		return 0
	}
	first := slices.MinFunc(ks.leases, func(a, b lease) int { return cmp.Compare(a.until, b.until) })
	return first.until - tx.now
}

// run2 runs a statement whose first two parameters are blobs.
func run2(st *lite.Stmt, a, b []byte) error {
	st.BindBlob(1, a)
	st.BindBlob(2, b)
	_, err := st.Run()
	return err
}

// bindFingerprint binds a fingerprint, an empty blob when there is none.
func bindFingerprint(st *lite.Stmt, i int, f *dibs.Fingerprint) {
	if f.IsZero() {
		st.BindBlob(i, nil)
		return
	}
	st.BindBlob(i, f[:])
}
