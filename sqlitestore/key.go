package sqlitestore

import (
	"cmp"
	"slices"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

// remembered is how long an abandoned lease is kept, in µs.
const remembered = int64(dibs.AbandonedRetention / 1000)

// lease is a row of the table lease, without progress.
type lease struct {
	token           dibs.Token
	until           int64
	fence           int64
	since           int64
	attempt         int64
	permits, weight int64
	number          int64 // of the reserved place at which it was granted; 0: none
	once            bool
	fingerprint     dibs.Fingerprint
	owner           string
}

// keyState is the state of one key, without its record.
type keyState struct {
	leases []lease

	known     bool  // the table memory has a row for the key
	free      int64 // since when a reserved place has blocked a claim; 0: it does not
	count     int64 // leases abandoned in a row
	abandoned lease // the last of these

	queue
	freed     bool // the next waiter may have its turn now
	forgotten bool // the abandoned row was just deleted
}

// load reads the key's state and records what has ended since: leases, places, and
// abandoned rows.
func (tx *transaction) load() *keyState {
	ks := &tx.state
	*ks = keyState{leases: ks.leases[:0], queue: queue{numbers: ks.numbers[:0], waiters: ks.waiters[:0], ended: ks.ended[:0]}}
	tx.readLeases(ks)
	tx.readMemory(ks)
	if ks.count > 0 && !ks.abandoned.once && ks.abandoned.until+remembered <= tx.now {
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
		ks.abandoned = lease{
			until: row.Int(3), fence: row.Int(4), since: row.Int(5), attempt: ks.count, once: row.Bool(6), owner: string(row.Bytes(8)),
		}
		copy(ks.abandoned.token[:], row.Bytes(2))
		copy(ks.abandoned.fingerprint[:], row.Bytes(7))
	}, tx.k)
}

// abandon ends a lease at that time as if its holder had crashed.
func (tx *transaction) abandon(ks *keyState, l lease, at int64) {
	tx.change("abandon", tx.k, l.token[:], at)
	if l.once {
		tx.wakeWaiters(0) // waiters ask, and get the unknown outcome
	}
	tx.deleteLease(ks, l.token)
	tx.readMemory(ks)
}

func (tx *transaction) deleteLease(ks *keyState, t dibs.Token) {
	ks.freed = true
	ks.leases = slices.DeleteFunc(ks.leases, func(l lease) bool { return l.token == t })
	tx.change("deleteLease", tx.k, t[:])
}

// end ends a lease cleanly, together with all places at its number and the abandoned row.
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

// forget deletes the abandoned row.
func (tx *transaction) forget(ks *keyState) {
	ks.count, ks.abandoned = 0, lease{}
	tx.remember(ks, "forget")
}

// setFree sets ks.free.
func (tx *transaction) setFree(ks *keyState, since int64) {
	if ks.free = since; since == 0 {
		tx.remember(ks, "clearFree")
		return
	}
	ks.known = true
	tx.change("setFree", tx.k, since)
}

// remember runs a statement that deletes a part of the key's row in memory.
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

// unknown reports whether an operator must settle the key before the next grant.
func (ks *keyState) unknown() bool { return ks.count > 0 && ks.abandoned.once }

// differs reports whether the fingerprint differs from that of a holder or of the
// abandoned row.
func (ks *keyState) differs(f dibs.Fingerprint) bool {
	return slices.ContainsFunc(ks.leases, func(l lease) bool { return l.fingerprint.Differs(f) }) ||
		ks.count > 0 && ks.abandoned.fingerprint.Differs(f)
}

// hasRoom reports whether the leases leave room for a claim with these permits and this
// weight.
func (ks *keyState) hasRoom(permits, weight int64) bool {
	for i := range ks.leases {
		weight += ks.leases[i].weight
		if ks.leases[i].permits != permits {
			return false
		}
	}
	return weight <= permits
}

// left returns the time until the first lease ends, or 0 without leases.
func (tx *transaction) left(ks *keyState) int64 {
	if len(ks.leases) == 0 {
		return 0
	}
	first := slices.MinFunc(ks.leases, func(a, b lease) int { return cmp.Compare(a.until, b.until) })
	return first.until - tx.now
}

// bytesOf returns a fingerprint as the file stores it: empty for none.
func bytesOf(f *dibs.Fingerprint) []byte {
	if f.IsZero() {
		return nil
	}
	return f[:]
}
