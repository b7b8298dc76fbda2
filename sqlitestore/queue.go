package sqlitestore

import (
	"slices"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

// queue is a key's places, as far as a step needs them.
type queue struct {
	numbers  []int64 // of leases, sorted: places at these numbers do not block
	first    int64   // the first number with a place; 0: the queue is empty
	front    int64   // the number in front; 0: none
	reserved place   // the reserved place in front
	waiters  []place // the waiters in front; none: the reserved place alone is in front
	ended    []place // places to delete
}

// place is a row of the table place. number 0 means no place.
type place struct {
	number          int64
	token           dibs.Token
	reserved        bool
	permits, weight int64
	hold, asked     int64
}

// findFront finds the place in front, and deletes the ended places before it.
func (tx *transaction) findFront(ks *keyState) {
	q := &ks.queue
	*q = queue{numbers: q.numbers[:0], waiters: q.waiters[:0], ended: q.ended[:0]}
	for i := range ks.leases {
		if n := ks.leases[i].number; n != 0 {
			q.numbers = append(q.numbers, n)
		}
	}
	slices.Sort(q.numbers)
	tx.readFront(q, ks.free)
	for i := range q.ended {
		tx.deletePlace(ks, &q.ended[i])
	}
}

func (tx *transaction) readFront(q *queue, free int64) {
	for row := range tx.rows("places", tx.k) {
		p := place{
			number: row.Int(0), token: dibs.Token(row.Bytes(1)), reserved: row.Bool(2),
			permits: row.Int(4), weight: row.Int(5), hold: row.Int(6), asked: row.Int(7),
		}
		if q.front != 0 && q.front != p.number && !q.skipUnused(free, tx.now) {
			return
		}
		if row.Int(3) <= tx.now {
			q.ended = append(q.ended, p)
			continue
		}
		if q.first == 0 {
			q.first = p.number
		}
		switch {
		case q.taken(p.number):
		case p.reserved:
			q.front, q.reserved = p.number, p
		default:
			q.front, q.waiters = p.number, append(q.waiters, p)
		}
	}
	if q.front != 0 {
		q.skipUnused(free, tx.now)
	}
}

// skipUnused removes a reserved place in front if no waiter is there and its Hold is
// over, and reports whether it did.
func (q *queue) skipUnused(free, now int64) bool {
	p := q.reserved
	if len(q.waiters) > 0 || free == 0 || p.hold == 0 || max(free, p.asked)+p.hold > now {
		return false
	}
	q.ended = append(q.ended, p)
	if q.front = 0; q.first == p.number {
		q.first = 0
	}
	return true
}

// isReserved reports whether a reserved place without a waiter is in front.
func (q *queue) isReserved() bool { return q.front != 0 && len(q.waiters) == 0 }

// taken reports whether a lease was granted at the number.
func (q *queue) taken(number int64) bool {
	_, found := slices.BinarySearch(q.numbers, number)
	return found
}

// serve wakes the waiters in front if the key has room for them. Each step that frees
// something ends with it.
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

// advance records what has ended on a key, and serves the next waiter.
func (tx *transaction) advance() *keyState {
	ks := tx.load()
	ks.freed = true
	tx.serve(ks)
	return ks
}

// wakeWaiters wakes all waiters with at least that MaxAge.
func (tx *transaction) wakeWaiters(maxAge int64) {
	for row := range tx.rows("waiters", tx.k, tx.now, maxAge) {
		tx.wake(dibs.Token(row.Bytes(0)))
	}
}

// findPlace returns the token's place. It deletes a place that has ended.
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

// nextNumber returns the number of a new place: above all places and all leases.
func (tx *transaction) nextNumber(ks *keyState) int64 {
	last := int64(0)
	if n := len(ks.numbers); n > 0 {
		last = ks.numbers[n-1]
	}
	tx.get("lastPlace", func(row *lite.Stmt) { last = max(last, row.Int(0)) }, tx.k)
	return last + 1
}

// isFull reports whether the queue is full. It counts places only if their numbers
// suggest it.
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
