package sqlitestore

import (
	"cmp"
	"slices"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

// remembered is how long an abandoned lease is remembered, in microseconds.
const remembered = int64(dibs.AbandonedRetention / 1000)

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
func (tx *transaction) load() *keyState {
	ks := &tx.state
	*ks = keyState{leases: ks.leases[:0], queue: queue{numbers: ks.numbers[:0], waiters: ks.waiters[:0], dead: ks.dead[:0]}}
	tx.readLeases(ks)
	tx.readMemory(ks)
	if ks.count > 0 && !ks.gone.once && ks.gone.until+remembered <= tx.now {
		ks.forgotten = true
		tx.forget(ks)
	}
	tx.findFront(ks)
	if ks.free != 0 && ks.first == 0 {
		tx.setFree(ks, 0)
	}
	return ks
}

func (tx *transaction) readLeases(ks *keyState) {
	var ran []lease
	for row := range tx.rows("leases", tx.k) {
		l := lease{
			until: row.Int(1), fence: row.Int(2), since: row.Int(3), attempt: row.Int(4), permits: row.Int(5),
			weight: row.Int(6), number: row.Int(7), once: row.Bool(8), owner: string(row.Bytes(10)),
		}
		copy(l.token[:], row.Bytes(0))
		copy(l.fingerprint[:], row.Bytes(9))
		if l.until > tx.now {
			ks.leases = append(ks.leases, l)
		} else {
			ran = append(ran, l)
		}
	}
	slices.SortFunc(ran, func(a, b lease) int { return cmp.Compare(a.until, b.until) })
	for _, l := range ran {
		tx.abandon(ks, l, l.until)
	}
}

func (tx *transaction) readMemory(ks *keyState) {
	ks.known = tx.get("memory", func(row *lite.Stmt) {
		ks.free, ks.count = row.Int(0), row.Int(1)
		ks.gone = lease{
			until: row.Int(3), fence: row.Int(4), since: row.Int(5), attempt: ks.count, once: row.Bool(6), owner: string(row.Bytes(8)),
		}
		copy(ks.gone.token[:], row.Bytes(2))
		copy(ks.gone.fingerprint[:], row.Bytes(7))
	}, tx.k)
}

// abandon ends a lease at that time as if its holder had crashed.
func (tx *transaction) abandon(ks *keyState, l lease, at int64) {
	tx.change("abandon", tx.k, l.token[:], at)
	if l.once {
		tx.wakeWaiters(0) // nobody's turn comes any more; they ask to be told so
	}
	tx.deleteLease(ks, l.token)
	tx.readMemory(ks)
}

// deleteLease deletes a lease and nothing else.
func (tx *transaction) deleteLease(ks *keyState, t dibs.Token) {
	ks.freed = true
	ks.leases = slices.DeleteFunc(ks.leases, func(l lease) bool { return l.token == t })
	tx.change("deleteLease", tx.k, t[:])
}

// end ends a lease cleanly, and with it the place that it was granted at. Nothing counts
// as abandoned any more.
func (tx *transaction) end(ks *keyState, l lease) {
	tx.deleteLease(ks, l.token)
	if l.number != 0 {
		for row := range tx.rows("deleteNumber", tx.k, l.number) {
			if reserved := row.Bool(1); !reserved {
				tx.wake(dibs.Token(row.Bytes(0)))
			}
		}
	}
	tx.forget(ks)
}

// forget deletes what was abandoned.
func (tx *transaction) forget(ks *keyState) {
	ks.count, ks.gone = 0, lease{}
	tx.remember(ks, "forget")
}

// setFree sets since when the key is free and kept for a reserved place; 0: it is not.
func (tx *transaction) setFree(ks *keyState, since int64) {
	if ks.free = since; since == 0 {
		tx.remember(ks, "clearFree")
		return
	}
	ks.known = true
	tx.change("setFree", tx.k, since)
}

// remember runs a statement that takes something out of the memory, if there is anything.
func (tx *transaction) remember(ks *keyState, name string) {
	if ks.known {
		tx.change(name, tx.k)
		tx.change("deleteMemory", tx.k)
	}
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

// bytesOf returns what the file has of a fingerprint: nothing when there is none.
func bytesOf(f *dibs.Fingerprint) []byte {
	if f.IsZero() {
		return nil
	}
	return f[:]
}
