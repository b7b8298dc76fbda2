package memstore

import (
	"iter"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backend"
)

// queue is the places of a key, in the order of their numbers. An entry has one only
// while there are places.
type queue struct {
	shard *shard
	entry *entry // nil when the queue has ended

	places  []*place              // nil where a place has ended
	head    int                   // the index of the first place
	count   int                   // of the places
	byToken map[dibs.Token]*place // by the tokens of reserved places and of waiters; nil while the queue is short
	soonest instant               // no reserved place and no waiter's Stay ends before
	free    instant               // since when the key is free but for a reserved place; otherwise never

	timer *time.Timer
	armed instant // when the timer fires; never when it is stopped
}

// place is a number in the queue: a reserved place, the waiters with its number, or both.
type place struct {
	position int      // in places, which are in the order of their numbers
	waiters  *attempt // linked, in the order in which they arrived
	lease    *attempt // the lease that was granted here; while there is one, the place does not block

	// While it is reserved.
	reserved bool
	token    dibs.Token
	owner    dibs.Owner
	until    instant
	hold     time.Duration // how long it may keep others from a free key; 0: no limit
	asked    instant       // when it was asked for last
}

// shortQueue is how many places are searched one by one.
const shortQueue = 16

// before reports whether p, the place in front or nil, comes before b, a token's place or
// nil.
func (p *place) before(b *place) bool {
	return p != nil && (b == nil || p.position < b.position)
}

// has reports whether the token is that of the reserved place or of one of its waiters.
func (p *place) has(t dibs.Token) bool { return p.reserved && p.token == t || p.waiter(t) != nil }

// waiter returns the token's waiter at the place, or nil.
func (p *place) waiter(t dibs.Token) *attempt {
	for a := p.waiters; a != nil; a = a.next {
		if a.token == t {
			return a
		}
	}
	return nil
}

// find returns the place of a token, or nil.
func (q *queue) find(t dibs.Token) *place {
	if q.byToken != nil {
		return q.byToken[t]
	}
	for _, p := range q.places[q.head:] {
		if p != nil && p.has(t) {
			return p
		}
	}
	return nil
}

// reserve makes a place a token's reserved one.
func (q *queue) reserve(p *place, t dibs.Token) {
	p.reserved, p.token = true, t
	q.index(t, p)
}

// add adds a place at the end.
func (q *queue) add() *place {
	if len(q.places) == cap(q.places) {
		q.pack() // so that ended places do not make it grow
	}
	p := &place{position: len(q.places)}
	q.places = append(q.places, p)
	q.count++
	return p
}

// join adds a waiter to a place.
func (q *queue) join(p *place, a *attempt) {
	a.place, a.prev, a.next = p, nil, nil
	last := &p.waiters
	for *last != nil {
		a.prev = *last
		last = &(*last).next
	}
	*last = a
	q.index(a.token, p)
}

// leave takes a waiter away from its place, and reports whether the place has ended.
func (q *queue) leave(a *attempt) bool {
	p := a.place
	if a.prev != nil {
		a.prev.next = a.next
	} else {
		p.waiters = a.next
	}
	if a.next != nil {
		a.next.prev = a.prev
	}
	a.prev, a.next, a.place = nil, nil, nil
	delete(q.byToken, a.token)
	return q.tidy(p)
}

// giveUp ends a reservation, and reports whether the place has ended.
func (q *queue) giveUp(p *place) bool {
	p.reserved = false
	delete(q.byToken, p.token)
	return q.tidy(p)
}

// tidy removes a place that is not used any more, and reports whether it did.
func (q *queue) tidy(p *place) bool {
	if p.reserved || p.waiters != nil || p.lease != nil {
		return false
	}
	q.places[p.position] = nil
	q.count--
	return true
}

// trim makes head the first place again, and closes the gaps if there are many.
func (q *queue) trim() {
	for q.places[q.head] == nil {
		q.head++
	}
	if gaps := len(q.places) - q.count; gaps > 2*q.count+shortQueue {
		q.pack()
	}
}

// pack closes the gaps if they are half of the queue. So its cost is spread over the places
// that have ended.
func (q *queue) pack() {
	if len(q.places)-q.count < len(q.places)/2 {
		return
	}
	n := 0
	for _, p := range q.places[q.head:] {
		if p != nil {
			p.position = n
			q.places[n] = p
			n++
		}
	}
	clear(q.places[n:])
	q.places, q.head = q.places[:n], 0
	if n <= shortQueue/2 {
		q.byToken = nil
	}
}

// index makes a place findable by a token, if the queue is long.
func (q *queue) index(t dibs.Token, p *place) {
	switch {
	case q.byToken != nil:
		q.byToken[t] = p
	case q.count > shortQueue:
		q.byToken = make(map[dibs.Token]*place, 4*shortQueue)
		for _, p := range q.places[q.head:] {
			if p == nil {
				continue
			}
			if p.reserved {
				q.byToken[p.token] = p
			}
			for a := p.waiters; a != nil; a = a.next {
				q.byToken[a.token] = p
			}
		}
	}
}

// lasts notes when a reserved place or a waiter's Stay ends.
func (q *queue) lasts(until instant) { q.soonest = min(q.soonest, until) }

// front returns the place in front and its first waiter, which is nil if the place is only
// reserved. It removes expired places on the way.
func (q *queue) front(now instant) (*place, *attempt) {
	for _, p := range q.places[q.head:] {
		if p == nil || p.lease != nil {
			continue
		}
		if _, gone := q.expire(p, now); gone {
			continue
		}
		if p.waiters != nil {
			return p, p.waiters
		}
		if p.holdEnd(q) > now {
			return p, nil
		}
		q.giveUp(p)
	}
	return nil, nil
}

// expire removes what has expired at a place. n is how much that was. gone says that the
// place has ended with it.
func (q *queue) expire(p *place, now instant) (n int, gone bool) {
	if p.reserved && p.until <= now {
		n, gone = n+1, q.giveUp(p)
	}
	for a := p.waiters; a != nil; {
		next := a.next
		if a.until <= now {
			n, gone = n+1, q.leave(a)
		}
		a = next
	}
	return n, gone
}

// holdEnd returns when a reserved place without waiters stops blocking.
func (p *place) holdEnd(q *queue) instant {
	if p.hold == 0 || q.free == never {
		return p.until
	}
	return min(p.until, max(q.free, p.asked).after(p.hold))
}

// expireAll removes up to limit expired reservations and waiters, and returns how many.
func (q *queue) expireAll(now instant, limit int) int {
	if q.soonest > now {
		return 0
	}
	n := 0
	soonest := never
	for _, p := range q.places[q.head:] {
		if p == nil {
			continue
		}
		if n < limit {
			m, gone := q.expire(p, now)
			if n += m; gone {
				continue
			}
		}
		if p.reserved {
			soonest = min(soonest, p.until)
		}
		for a := p.waiters; a != nil; a = a.next {
			soonest = min(soonest, a.until)
		}
	}
	q.soonest = soonest
	return n
}

// looked is how many places ahead counts one by one.
const looked = 64

// ahead returns how many places at most come before p, or how many there are if p is nil.
func (q *queue) ahead(p *place) int {
	position := len(q.places)
	if p != nil {
		position = p.position
	}
	if position-q.head > looked+2*shortQueue {
		return min(position-q.head, q.count)
	}
	n := 0
	for _, p := range q.places[q.head:position] {
		if p != nil && p.lease == nil {
			n++
		}
	}
	return n
}

// waiters yields all waiters, in order.
func (q *queue) waiters() iter.Seq[*attempt] {
	return func(yield func(*attempt) bool) {
		if q == nil {
			return
		}
		for _, p := range q.places[q.head:] {
			if p == nil {
				continue
			}
			for w := p.waiters; w != nil; w = w.next {
				if !yield(w) {
					return
				}
			}
		}
	}
}

// describe adds the live places, in order, a waiter before the reserved place with its number.
func (q *queue) describe(d *dibs.Entry, list bool, now instant) {
	var count backend.Queue
	for _, p := range q.places[q.head:] {
		if p == nil {
			continue
		}
		number, leased := int64(p.position)+1, p.lease != nil
		for a := p.waiters; a != nil; a = a.next {
			if a.until <= now {
				continue
			}
			count.Add(number, false, leased)
			if list {
				d.Places = append(d.Places, dibs.PlaceInfo{Token: a.token, Owner: a.owner, Left: now.until(a.until)})
			}
		}
		if !p.reserved || p.until <= now {
			continue
		}
		use := count.Add(number, true, leased)
		if list {
			d.Places = append(d.Places, dibs.PlaceInfo{
				Token: p.token, Owner: p.owner, Left: now.until(p.until), Reserved: true, Use: use, Blocks: p.blocks(q, now),
			})
		}
	}
	d.Waiters, d.Reserved = count.Waiters, count.Reserved
}

// blocks returns how much longer a reserved place can block.
func (p *place) blocks(q *queue, now instant) time.Duration {
	if p.hold > 0 && q.free == never { // its Hold has not begun
		return min(p.hold, now.until(p.until))
	}
	return max(now.until(p.holdEnd(q)), 0)
}

// arm makes the timer fire at t or earlier. It is not set back when it could fire later,
// because that would cost more than to fire in vain.
func (q *queue) arm(t, now instant) {
	if t >= q.armed || q.shard.store.closed.Load() {
		return
	}
	q.armed = t
	if q.timer == nil {
		q.timer = time.AfterFunc(now.until(t), q.fire)
	} else {
		q.timer.Reset(now.until(t))
	}
}

// fire notices what has expired.
func (q *queue) fire() {
	sh := q.shard
	sh.mu.Lock()
	q.armed = never
	if e := q.entry; e != nil {
		now := sh.store.now()
		sh.advance(e, now)
		sh.serve(e, now)
		sh.finish(e, now)
	}
	sh.unlock(dibs.Token{})
}
