package memstore

import (
	"time"

	"github.com/dibs-go/dibs"
)

// entry is what a shard knows about one key. It is small, because most entries have only a
// record or a holder.
type entry struct {
	key dibs.Key

	leases  *attempt // linked
	byToken map[dibs.Token]*attempt
	soonest instant // no lease expires before

	abandoned *attempt // the last abandoned lease; its number counts the abandoned leases in a row
	record    *record
	queue     *queue

	permits int32 // of all leases
	weight  int32 // of all leases together
	held    int32 // how many leases there are
}

// attempt is a waiter, then a holder, then an abandoned lease. It is one struct, so that a
// grant moves only a pointer.
type attempt struct {
	prev, next *attempt // among the leases of its key, or the waiters at its place

	token       dibs.Token
	fingerprint dibs.Fingerprint
	owner       dibs.Owner
	atMostOnce  bool
	woken       bool // since it asked last

	until           instant // when its Stay or its lease expires, or expired
	permits, weight int32
	maxAge          time.Duration
	place           *place // a waiter's place; the reserved place at which a lease was granted

	// From the grant on.
	fence     uint64
	number    int // 1 + how many were abandoned in a row before it
	since     instant
	progress  []byte // saved by this holder; never written to
	inherited []byte // saved by the abandoned holders before it
}

// record is what a finished holder left behind.
type record struct {
	token       dibs.Token
	fingerprint dibs.Fingerprint
	data        []byte // never written to, because answers share it
	written     instant
	until       instant
}

// idle reports whether the entry has nothing.
func (e *entry) idle() bool {
	return e.held == 0 && e.queue == nil && e.record == nil && e.abandoned == nil
}

// unknown reports whether the last attempt was abandoned and must not be made again.
func (e *entry) unknown() bool { return e.abandoned != nil && e.abandoned.atMostOnce }

// hasRoom reports whether the leases leave room for a claim with these permits and weight.
func (e *entry) hasRoom(permits, weight int32) bool {
	return e.held == 0 || e.permits == permits && e.weight+weight <= permits
}

// manyHolders is how many holders are found without a map.
const manyHolders = 16

// holder returns the token's lease, or nil.
func (e *entry) holder(t dibs.Token) *attempt {
	if e.byToken != nil {
		return e.byToken[t]
	}
	for a := e.leases; a != nil; a = a.next {
		if a.token == t {
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
	e.permits = a.permits
	e.weight += a.weight
	e.prolong(a, a.until)
	switch {
	case e.byToken != nil:
		e.byToken[a.token] = a
	case e.held > manyHolders:
		e.byToken = make(map[dibs.Token]*attempt, 2*manyHolders)
		for a := e.leases; a != nil; a = a.next {
			e.byToken[a.token] = a
		}
	}
}

// removeLease takes an attempt out of the leases and away from its place.
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
	e.weight -= a.weight
	if a.place != nil {
		a.place.lease = nil
	}
	if e.byToken != nil {
		delete(e.byToken, a.token)
		if e.held == 0 {
			e.byToken = nil
		}
	}
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

// differs reports whether the claim's fingerprint differs from that of a holder or of the
// last abandoned lease.
func (e *entry) differs(c *dibs.Claim) bool {
	if c.Fingerprint.IsZero() {
		return false
	}
	for a := e.leases; a != nil; a = a.next {
		if a.fingerprint.Differs(c.Fingerprint) {
			return true
		}
	}
	return e.abandoned != nil && e.abandoned.fingerprint.Differs(c.Fingerprint)
}

// accepts reports whether the record answers a claim with that MaxAge.
func (r *record) accepts(maxAge time.Duration, now instant) bool {
	return r != nil && maxAge > 0 && r.written.until(now) <= maxAge
}

// left returns the time until the first lease expires, 0 without a lease.
func (e *entry) left(now instant) time.Duration {
	if e.held == 0 {
		return 0
	}
	first := e.soonest
	if e.held <= manyHolders {
		first = never
		for l := e.leases; l != nil; l = l.next {
			first = min(first, l.until)
		}
	}
	return now.until(first)
}
