package sqlitestore

import (
	"slices"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

// queue is what a step needs to know of a key's places.
type queue struct {
	numbers []int64 // at which leases were granted, in order: these are in nobody's way
	first   int64   // the first number that somebody has; 0: the queue is empty
	front   int64   // the number that is in front; 0: none
	kept    place   // the reserved one with that number
	waiters []place // those who wait at it; none: it is kept for whoever comes
	dead    []place // that are over, and to be deleted
}

// place is a row of the table place, as far as its turn depends on it. A number of 0
// means that there is none.
type place struct {
	number          int64
	token           dibs.Token
	reserved        bool
	permits, weight int64
	hold, asked     int64
}

// findFront finds the place that is in front, and deletes those that are over on the way.
func (tx *transaction) findFront(ks *keyState) {
	q := &ks.queue
	*q = queue{numbers: q.numbers[:0], waiters: q.waiters[:0], dead: q.dead[:0]}
	for i := range ks.leases {
		if n := ks.leases[i].number; n != 0 {
			q.numbers = append(q.numbers, n)
		}
	}
	slices.Sort(q.numbers)
	tx.readFront(q, ks.free)
	for i := range q.dead {
		tx.deletePlace(ks, &q.dead[i])
	}
}

func (tx *transaction) readFront(q *queue, free int64) {
	for row := range tx.rows("places", tx.k) {
		p := place{
			number: row.Int(0), token: dibs.Token(row.Bytes(1)), reserved: row.Bool(2),
			permits: row.Int(4), weight: row.Int(5), hold: row.Int(6), asked: row.Int(7),
		}
		if q.front != 0 && q.front != p.number && !q.pass(free, tx.now) {
			return
		}
		if row.Int(3) <= tx.now {
			q.dead = append(q.dead, p)
			continue
		}
		if q.first == 0 {
			q.first = p.number
		}
		switch {
		case q.taken(p.number):
		case p.reserved:
			q.front, q.kept = p.number, p
		default:
			q.front, q.waiters = p.number, append(q.waiters, p)
		}
	}
	if q.front != 0 {
		q.pass(free, tx.now)
	}
}

// pass takes the place in front away, and reports that it did, if it is a reserved one
// that nobody waits at and has been in the way for as long as it may.
func (q *queue) pass(free, now int64) bool {
	p := q.kept
	if len(q.waiters) > 0 || free == 0 || p.hold == 0 || max(free, p.asked)+p.hold > now {
		return false
	}
	q.dead = append(q.dead, p)
	if q.front = 0; q.first == p.number {
		q.first = 0
	}
	return true
}

// isKept reports whether a reserved place that nobody waits at is in front.
func (q *queue) isKept() bool { return q.front != 0 && len(q.waiters) == 0 }

// taken reports whether a lease was granted at the number.
func (q *queue) taken(number int64) bool {
	_, found := slices.BinarySearch(q.numbers, number)
	return found
}

// serve wakes who waits in front, if the key can be theirs. It ends each step that may
// have made that so.
func (tx *transaction) serve(ks *keyState) {
	if !ks.freed || ks.first == 0 {
		return
	}
	tx.findFront(ks)
	for _, w := range ks.waiters {
		if !ks.unknown() && ks.hasRoom(w.permits, w.weight) {
			tx.wake(w.token)
		}
	}
}

// settleDown writes down what has happened to a key by itself, and serves who is next.
func (tx *transaction) settleDown() *keyState {
	ks := tx.load()
	ks.freed = true // perhaps
	tx.serve(ks)
	return ks
}

// wakeWaiters has all asked again that wait for the key with at least that MaxAge.
func (tx *transaction) wakeWaiters(maxAge int64) {
	for row := range tx.rows("waiters", tx.k, tx.now, maxAge) {
		tx.wake(dibs.Token(row.Bytes(0)))
	}
}

// findPlace returns the token's place. If it is over it is deleted, and is none.
func (tx *transaction) findPlace(ks *keyState, t dibs.Token) place {
	p, over := place{}, false
	if ks.first != 0 && !t.IsZero() {
		tx.get("findPlace", func(row *lite.Stmt) {
			p, over = place{number: row.Int(0), token: t, reserved: row.Bool(1)}, row.Int(2) <= tx.now
		}, tx.k, t[:])
	}
	if over {
		tx.deletePlace(ks, &p)
		return place{}
	}
	return p
}

// nextNumber returns the number of a new place: behind all others, and behind those at
// which leases were granted.
func (tx *transaction) nextNumber(ks *keyState) int64 {
	last := int64(0)
	if n := len(ks.numbers); n > 0 {
		last = ks.numbers[n-1]
	}
	tx.get("lastPlace", func(row *lite.Stmt) { last = max(last, row.Int(0)) }, tx.k)
	return last + 1
}

// isFull reports whether the key has as many places as it may have. They are only
// counted when their numbers allow that.
func (tx *transaction) isFull(ks *keyState, next int64) (full bool) {
	if most := int64(tx.s.opt.MaxWaiters); ks.first != 0 && next-ks.first >= most {
		tx.get("countPlaces", func(row *lite.Stmt) { full = row.Int(0) >= most }, tx.k, tx.now)
	}
	return full
}

func (tx *transaction) deletePlace(ks *keyState, p *place) {
	ks.freed = true
	tx.change("deletePlace", tx.k, p.number, p.token[:])
}
