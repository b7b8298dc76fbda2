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

	leases  *attempt // linked
	byToken map[dibs.Token]*attempt
	soonest instant // no lease runs out before

	lost   *attempt // the last lease that was abandoned; its number counts them
	record *record
	queue  *queue

	permits int32 // of all leases
	weight  int32 // of all leases together
	held    int32 // how many leases there are
	ns      uint8 // how much of name is the namespace
}

// attempt is one token's way: waiting, holding, abandoned. It is the same struct
// all the way, so that a grant moves a pointer.
type attempt struct {
	prev, next *attempt // among the leases of its key, or the waiters at its place

	token       dibs.Token
	fingerprint dibs.Fingerprint
	owner       dibs.Owner
	atMostOnce  bool
	woken       bool // since it asked last

	until           instant // when its Stay or the lease is over, or was
	permits, weight int32
	maxAge          time.Duration
	place           *place // waiting: its number. A lease: the reserved place that it was granted at

	// From the grant on.
	fence     uint64
	number    int // 1 + how many were abandoned in a row before it
	since     instant
	progress  []byte // saved by this holder; never written to
	inherited []byte // what it was told of those before it
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

// unknown reports whether the last attempt ended without an outcome although
// it must not be made again.
func (e *entry) unknown() bool { return e.lost != nil && e.lost.atMostOnce }

// hasRoom reports whether the leases leave room for a claim with that many permits
// and that weight.
func (e *entry) hasRoom(permits, weight int32) bool {
	return e.held == 0 || e.permits == permits && e.weight+weight <= permits
}

// manyHolders is from how many on they are found by a map.
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

// removeLease takes an attempt out of the leases. Its place is nobody's then.
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

// differs reports whether the claim asks something else than the holders, or those
// who abandoned the key last.
func (e *entry) differs(c *dibs.Claim) bool {
	if c.Fingerprint.IsZero() {
		return false
	}
	for a := e.leases; a != nil; a = a.next {
		if a.fingerprint.Differs(c.Fingerprint) {
			return true
		}
	}
	return e.lost != nil && e.lost.fingerprint.Differs(c.Fingerprint)
}

// accepts reports whether a claim with that MaxAge is answered by the record.
func (r *record) accepts(maxAge time.Duration, now instant) bool {
	return r != nil && maxAge > 0 && r.written.until(now) <= maxAge
}

// left returns the time until the first lease ends, 0 without one.
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
