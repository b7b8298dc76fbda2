package memstore

import (
	"time"

	"github.com/dibs-go/dibs"
)

// entry is what a shard knows of one key. It is small, because most entries
// have nothing but a record, or a holder; the rest is behind pointers.
type entry struct {
	next *entry // in the same bucket of the table
	hash uint64
	name []byte // the namespace and the name, one after the other

	leases  *attempt // those who hold the key, also on offer; linked
	byToken map[dibs.Token]*attempt
	soonest instant // no lease runs out before

	lost   *attempt // the last lease that was abandoned, until it is taken up
	record *record
	queue  *queue

	due          instant // when the sweep looks at it; see wheel.go
	later, prior *entry  // others in its slot of the wheel

	permits   int32 // what holders and places agreed on
	held      int32 // how many leases there are
	taken     int32 // how many of them have taken a place
	abandoned int32 // how many leases in a row were
	slot      int16 // 1 + its slot of the wheel; 0 when it is in none
	ns        uint8 // how much of name is the namespace
}

// attempt is one token's way: waiting, offered, holding, abandoned. It is the
// same struct all the way, so that a hand-over moves a pointer.
type attempt struct {
	prev, next *attempt // among the leases of its key

	token       dibs.Token
	fingerprint dibs.Fingerprint
	owner       dibs.Owner
	atMostOnce  bool
	offered     bool // the lease, which it has yet to confirm

	until instant // when the place or the lease runs out, or did

	// While it has a place.
	seq      uint64        // rises from place to place; those that stand again keep it
	position int           // in queue.places
	stands   time.Duration // how long, from when it is asked for
	holds    time.Duration // how long it may keep others from the key in its turn; 0: all the time
	maxAge   time.Duration
	reserved bool // it is not granted in its absence
	called   bool // a reserved place that was told that its turn has come
	sought   bool // while a lease had taken it, others claimed from it
	pressed  bool // others claim the key meanwhile: it runs out after holds

	// From the grant on.
	fence     uint64
	number    int // 1 + how many were abandoned in a row before it
	since     instant
	progress  []byte   // saved by this holder; never written to
	inherited []byte   // saved by those that abandoned the key before
	told      *attempt // the abandoned one, which it took up; inherited is its progress
	from      *attempt // the reserved place that it has taken
}

// record is what a finished holder left behind.
type record struct {
	token       dibs.Token
	fingerprint dibs.Fingerprint
	data        []byte // never written to: answers share it
	written     instant
	until       instant
}

// is reports whether the entry is that key's.
func (e *entry) is(k dibs.Key) bool {
	return len(e.name) == len(k.Namespace)+len(k.Name) && int(e.ns) == len(k.Namespace) &&
		string(e.name[:e.ns]) == k.Namespace && string(e.name[e.ns:]) == k.Name
}

func (e *entry) key() dibs.Key {
	return dibs.Key{Namespace: string(e.name[:e.ns]), Name: string(e.name[e.ns:])}
}

// idle reports whether there is nothing to know of the key.
func (e *entry) idle() bool {
	return e.held == 0 && e.queue == nil && e.record == nil && e.lost == nil
}

// agreed reports whether there is somebody to agree with about the permits.
func (e *entry) agreed() bool { return e.held > 0 || e.queue != nil }

// unknown reports whether the last attempt ended without an outcome although
// it must not be made again.
func (e *entry) unknown() bool { return e.lost != nil && e.lost.atMostOnce }

// manyHolders is from how many on they are found by a map.
const manyHolders = 16

// holder returns the token's lease, also one on offer.
func (e *entry) holder(t dibs.Token) *attempt {
	if e.byToken != nil {
		if a := e.byToken[t]; a != nil && a.token == t {
			return a
		}
		return nil
	}
	for a := e.leases; a != nil; a = a.next {
		if a.token == t {
			return a
		}
	}
	return nil
}

// taker returns the lease that has taken the token's place.
func (e *entry) taker(t dibs.Token) *attempt {
	switch {
	case e.taken == 0:
		return nil
	case e.byToken != nil:
		if a := e.byToken[t]; a != nil && a.token != t {
			return a
		}
		return nil
	}
	for a := e.leases; a != nil; a = a.next {
		if a.from != nil && a.from.token == t {
			return a
		}
	}
	return nil
}

// addLease adds an attempt to the leases.
func (e *entry) addLease(a *attempt) {
	if e.leases != nil {
		e.leases.prev = a
	}
	a.prev, a.next = nil, e.leases
	e.leases = a
	e.held++
	if e.held == 1 {
		e.soonest = a.until
	} else {
		e.soonest = min(e.soonest, a.until)
	}
	if a.from != nil {
		e.taken++
	}
	switch {
	case e.byToken != nil:
		e.index(a)
	case e.held > manyHolders:
		e.byToken = make(map[dibs.Token]*attempt, 2*manyHolders)
		for a := e.leases; a != nil; a = a.next {
			e.index(a)
		}
	}
}

// index lets a lease be found by its token, and by that of the place that it
// has taken. No token is both: one that holds the key has no place.
func (e *entry) index(a *attempt) {
	e.byToken[a.token] = a
	if a.from != nil {
		e.byToken[a.from.token] = a
	}
}

// removeLease takes an attempt out of the leases.
func (e *entry) removeLease(a *attempt) {
	if a.prev != nil {
		a.prev.next = a.next
	} else {
		e.leases = a.next
	}
	if a.next != nil {
		a.next.prev = a.prev
	}
	a.prev, a.next = nil, nil
	e.held--
	if a.from != nil {
		e.untake(a)
	}
	if e.byToken != nil {
		delete(e.byToken, a.token)
		if e.held == 0 {
			e.byToken = nil
		}
	}
}

// untake is called when a lease is to have its place no more.
func (e *entry) untake(a *attempt) {
	e.taken--
	delete(e.byToken, a.from.token)
}

// prolong makes a lease last until then.
func (e *entry) prolong(a *attempt, until instant) {
	a.until = until
	if e.held == 1 {
		e.soonest = until
	} else {
		e.soonest = min(e.soonest, until)
	}
}

// differs reports whether the claim asks something else than whoever holds,
// abandoned or finished the key last.
func (e *entry) differs(c *dibs.Claim) bool {
	if c.Fingerprint.IsZero() {
		return false
	}
	for a := e.leases; a != nil; a = a.next {
		if a.fingerprint.Differs(c.Fingerprint) {
			return true
		}
	}
	if e.lost != nil && e.lost.fingerprint.Differs(c.Fingerprint) {
		return true
	}
	return false
}

// accepts reports whether a claim with that MaxAge is answered by the record.
func (r *record) accepts(maxAge time.Duration, now instant) bool {
	return r != nil && maxAge > 0 && r.written.until(now) <= maxAge
}

// left returns the time until the first lease, or place in front of that
// position in the queue, can run out. With many in the way it may be less, never
// more than what those in front have. When nothing is, it is what a has left.
func (e *entry) left(position int, a *attempt, now instant) time.Duration {
	first := never
	if e.held <= manyHolders {
		for l := e.leases; l != nil; l = l.next {
			first = min(first, l.until)
		}
	} else {
		first = e.soonest
	}
	if e.queue != nil {
		first = min(first, e.queue.firstEnd(position, now))
	}
	if first == never && a != nil {
		first = a.until // nothing is in its way but its reservation
	}
	return now.until(first)
}
