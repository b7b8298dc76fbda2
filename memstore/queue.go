package memstore

import (
	"time"

	"github.com/dibs-go/dibs"
)

// queue is the places of a key, in the order of their numbers. An entry has one only
// while there are places.
type queue struct {
	shard *shard
	entry *entry // nil while the queue is free

	places  []*place              // nil where one is gone
	head    int                   // of the first place; never nil while there is one
	count   int                   // of the places
	byToken map[dibs.Token]*place // by the tokens of reserved places and of waiters; nil while the queue is short
	soonest instant               // no reserved place and no waiter's Stay ends before
	free    instant               // since when the key is free and kept for a reserved place; never when it is not

	timer *time.Timer
	armed instant // when the timer fires; never when it is stopped
}

// place is a number in the queue: a reserved place, those who wait there, or both.
type place struct {
	position int      // in places: the number is not kept
	waiters  *attempt // linked, in the order in which they came
	lease    *attempt // the lease that was granted here: the place is in nobody's way

	// While it is reserved.
	reserved bool
	token    dibs.Token
	owner    dibs.Owner
	until    instant
	hold     time.Duration // how long it may keep others from a free key; 0: all the time
	asked    instant       // when it was asked for last
}

// shortQueue is up to how many places are looked through one by one.
const shortQueue = 16

// before reports whether the place in front, if there is one, keeps a token with the
// place b, or with none, from its turn.
func (p *place) before(b *place) bool {
	return p != nil && (b == nil || p.position < b.position)
}

// has reports whether the token is that of the reserved place or of a waiter there.
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
		q.pack() // rather than grow for places that nobody has
	}
	p := q.shard.places.get()
	if p == nil {
		p = new(place)
	}
	p.position = len(q.places)
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

// leave takes a waiter away from its place, and reports whether the place is gone, too.
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

// giveUp ends a reservation, and reports whether the place is gone, too.
func (q *queue) giveUp(p *place) bool {
	p.reserved = false
	delete(q.byToken, p.token)
	return q.tidy(p)
}

// tidy removes a place that nobody has any more, and reports whether it did. One that a
// lease was granted at stands as long as that.
func (q *queue) tidy(p *place) bool {
	if p.reserved || p.waiters != nil || p.lease != nil {
		return false
	}
	q.places[p.position] = nil
	q.count--
	*p = place{}
	q.shard.places.put(p)
	return true
}

// settle restores, at the end of a step, that the head is a place and that the gaps are
// not too many.
func (q *queue) settle() {
	for q.places[q.head] == nil {
		q.head++
	}
	if gaps := len(q.places) - q.count; gaps > 2*q.count+shortQueue {
		q.pack()
	}
}

// pack closes the gaps. It takes time in proportion to the queue, and is due
// only after as many have left.
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

// index lets a place be found by a token, once the queue is long.
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

// front returns the place in front, and the waiter that is next there; none where the
// place is reserved and nobody waits at it. What is over is removed on the way.
func (sh *shard) front(q *queue, now instant) (*place, *attempt) {
	for _, p := range q.places[q.head:] {
		if p == nil || p.lease != nil {
			continue
		}
		if _, gone := sh.expire(q, p, now); gone {
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

// expire removes from a place what is over. n is how much that was, gone that the place
// went with it.
func (sh *shard) expire(q *queue, p *place, now instant) (n int, gone bool) {
	if p.reserved && p.until <= now {
		n, gone = n+1, q.giveUp(p)
	}
	for a := p.waiters; a != nil; {
		next := a.next
		if a.until <= now {
			n, gone = n+1, q.leave(a)
			sh.drop(a)
		}
		a = next
	}
	return n, gone
}

// holdEnd returns when a reserved place that nobody waits at stops being in the way.
func (p *place) holdEnd(q *queue) instant {
	if p.hold == 0 || q.free == never {
		return p.until
	}
	return min(p.until, max(q.free, p.asked).after(p.hold))
}

// expireAll removes up to limit of what is over, wherever it is, and returns how much
// that was. It looks at all places only when something can be over.
func (sh *shard) expireAll(q *queue, now instant, limit int) int {
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
			m, gone := sh.expire(q, p, now)
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

// ahead returns how many places at most are in front of one; of all if it is nil.
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

// living returns the places that are not over, in order.
func (q *queue) living(now instant) []dibs.PlaceInfo {
	var all []dibs.PlaceInfo
	for _, p := range q.places[q.head:] {
		if p == nil {
			continue
		}
		if p.reserved && p.until > now {
			all = append(all, dibs.PlaceInfo{Token: p.token, Owner: p.owner, Left: now.until(p.until), Reserved: true})
		}
		for a := p.waiters; a != nil; a = a.next {
			if a.until > now {
				all = append(all, dibs.PlaceInfo{Token: a.token, Owner: a.owner, Left: now.until(a.until)})
			}
		}
	}
	return all
}

// arm makes the timer fire at t at the latest. It may fire earlier, look, and
// be armed again: setting it back with each hand-over would cost more.
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

// fire lets time pass for the key.
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
