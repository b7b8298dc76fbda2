package sqlitestore

import (
	"slices"

	"github.com/dibs-go/dibs"
)

// queue is what a step needs to know of a key's places.
type queue struct {
	numbers []int64 // at which leases were granted, in order: these are in nobody's way
	first   int64   // the first number that somebody has; 0: the queue is empty
	front   int64   // the number that is in front; 0: none
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
func (tx *transaction) findFront(ks *keyState) error {
	q := &ks.queue
	*q = queue{numbers: q.numbers[:0], waiters: q.waiters[:0], dead: q.dead[:0]}
	for i := range ks.leases {
		if n := ks.leases[i].number; n != 0 {
			q.numbers = append(q.numbers, n)
		}
	}
	slices.Sort(q.numbers)
	if err := tx.readFront(ks); err != nil {
		return err
	}
	for i := range q.dead {
		if err := tx.deletePlace(ks, &q.dead[i]); err != nil {
			return err
		}
	}
	return nil
}

func (tx *transaction) readFront(ks *keyState) error {
	q := &ks.queue
	st := tx.st.places
	st.BindBlob(1, tx.k)
	defer st.Reset()
	var kept place // the reserved place in front
	for {
		row, err := st.Step()
		if err != nil {
			return err
		}
		p := place{}
		if row {
			p = place{
				number: st.Int(0), token: dibs.Token(st.Bytes(1)), reserved: st.Bool(2),
				permits: st.Int(4), weight: st.Int(5), hold: st.Int(6), asked: st.Int(7),
			}
		}
		if q.front != 0 && q.front != p.number {
			over := ks.free != 0 && kept.hold > 0 && max(ks.free, kept.asked)+kept.hold <= tx.now
			if len(q.waiters) > 0 || !over {
				return nil
			}
			q.dead = append(q.dead, kept)
			if q.front = 0; q.first == kept.number {
				q.first = 0
			}
		}
		if !row {
			return nil
		}
		if st.Int(3) <= tx.now {
			q.dead = append(q.dead, p)
			continue
		}
		if q.first == 0 {
			q.first = p.number
		}
		if q.taken(p.number) {
			continue
		}
		q.front = p.number
		if p.reserved {
			kept = p
		} else {
			q.waiters = append(q.waiters, p)
		}
	}
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
func (tx *transaction) serve(ks *keyState) error {
	if !ks.freed || ks.first == 0 && ks.front == 0 {
		return nil
	}
	if err := tx.findFront(ks); err != nil || ks.unknown() {
		return err
	}
	for _, w := range ks.waiters {
		if ks.hasRoom(w.permits, w.weight) {
			if err := tx.wake(w.token); err != nil {
				return err
			}
		}
	}
	return nil
}

// follow does what follows by itself for a key.
func (tx *transaction) follow() (*keyState, error) {
	ks, err := tx.load()
	if err != nil {
		return nil, err
	}
	return ks, tx.serve(ks)
}

// wakeWaiters has all asked again that wait for the key with at least that MaxAge.
func (tx *transaction) wakeWaiters(maxAge int64) error {
	st := tx.st.waiters
	st.BindBlob(1, tx.k)
	st.BindInt(2, tx.now)
	st.BindInt(3, maxAge)
	defer st.Reset()
	for {
		row, err := st.Step()
		if err != nil || !row {
			return err
		}
		if err := tx.wake(dibs.Token(st.Bytes(0))); err != nil {
			return err
		}
	}
}

// findPlace returns the token's place. If it is over it is deleted, and is none.
func (tx *transaction) findPlace(ks *keyState, t dibs.Token) (place, error) {
	if ks.first == 0 || t.IsZero() {
		return place{}, nil
	}
	st := tx.st.findPlace
	st.BindBlob(1, tx.k)
	st.BindBlob(2, t[:])
	row, err := st.Step()
	p, until := place{number: st.Int(0), token: t, reserved: st.Bool(1)}, st.Int(2)
	st.Reset()
	if err != nil || !row {
		return place{}, err
	}
	if until <= tx.now {
		return place{}, tx.deletePlace(ks, &p)
	}
	return p, nil
}

// nextNumber returns the number of a new place: behind all others, and behind those at
// which leases were granted.
func (tx *transaction) nextNumber(ks *keyState) (int64, error) {
	st := tx.st.lastPlace
	st.BindBlob(1, tx.k)
	defer st.Reset()
	_, err := st.Step()
	last := st.Int(0)
	if n := len(ks.numbers); n > 0 {
		last = max(last, ks.numbers[n-1])
	}
	return last + 1, err
}

// isFull reports whether the key has as many places as it may have. They are only
// counted when their numbers allow that.
func (tx *transaction) isFull(ks *keyState, next int64) (bool, error) {
	most := int64(tx.s.opt.MaxWaiters)
	if ks.first == 0 || next-ks.first < most {
		return false, nil
	}
	st := tx.st.countPlaces
	st.BindBlob(1, tx.k)
	st.BindInt(2, tx.now)
	defer st.Reset()
	_, err := st.Step()
	return st.Int(0) >= most, err
}

// savePlace writes a claim into the token's place, or into a new one with that number.
func (tx *transaction) savePlace(number int64, c *dibs.Claim) error {
	tx.dirty = true
	st := tx.st.savePlace
	st.BindBlob(1, tx.k)
	st.BindInt(2, number)
	st.BindBlob(3, c.Token[:])
	st.BindBool(4, c.Mode == dibs.Reserve)
	st.BindInt(5, tx.now+micros(c.Stay))
	st.BindInt(6, int64(c.Permits))
	st.BindInt(7, int64(c.Weight))
	st.BindInt(8, micros(c.MaxAge))
	st.BindInt(9, micros(c.Hold))
	st.BindInt(10, tx.now)
	st.BindString(11, c.Owner.String())
	_, err := st.Run()
	return err
}

func (tx *transaction) deletePlace(ks *keyState, p *place) error {
	tx.dirty, ks.freed = true, true
	st := tx.st.deletePlace
	st.BindBlob(1, tx.k)
	st.BindInt(2, p.number)
	st.BindBlob(3, p.token[:])
	_, err := st.Run()
	return err
}

// deleteNumber deletes all places with a number, and has those asked again who wait there.
func (tx *transaction) deleteNumber(number int64) error {
	tx.dirty = true
	st := tx.st.deleteNumber
	st.BindBlob(1, tx.k)
	st.BindInt(2, number)
	defer st.Reset()
	for {
		row, err := st.Step()
		if err != nil || !row {
			return err
		}
		if st.Bool(1) {
			continue
		}
		if err := tx.wake(dibs.Token(st.Bytes(0))); err != nil {
			return err
		}
	}
}
