package memstore

import (
	"slices"
	"time"

	"github.com/dibs-go/dibs"
)

// queue is those who wait for a key, in the order in which they came. An entry
// has one only while somebody waits.
type queue struct {
	shard *shard
	entry *entry // nil while the queue is free

	places  []*attempt // nil where somebody has left
	head    int        // of the first place; never nil while somebody waits
	waiting int
	byToken map[dibs.Token]*attempt // nil while the queue is short
	soonest instant                 // no place runs out before

	timer *time.Timer
	armed instant // when the timer fires; never when it is stopped
}

// shortQueue is up to how many places are looked through one by one.
const shortQueue = 16

// first returns the first place.
func (q *queue) first() *attempt { return q.places[q.head] }

// find returns the token's place, which may have run out.
func (q *queue) find(t dibs.Token) *attempt {
	if q.byToken != nil {
		return q.byToken[t]
	}
	for _, a := range q.places[q.head:] {
		if a != nil && a.token == t {
			return a
		}
	}
	return nil
}

// ahead returns how many places at most come before a position. It is 0 only
// for that of the first.
func (q *queue) ahead(position int) int { return min(position-q.head, q.waiting) }

// join adds a place at the end.
func (q *queue) join(a *attempt) {
	if len(q.places) == cap(q.places) {
		q.pack() // rather than grow for places that nobody has
	}
	a.position = len(q.places)
	q.places = append(q.places, a)
	q.added(a)
}

// rejoin adds a place where it was, before those that came after it.
func (q *queue) rejoin(a *attempt) {
	if q.waiting == 0 {
		q.join(a)
		return
	}
	i := q.after(a.seq)
	switch {
	case i > 0 && (i == q.head || q.places[i-1] == nil):
		i-- // a gap, most likely its own
	default:
		q.places = slices.Insert(q.places, i, nil)
		for j, b := range q.places[i+1:] {
			if b != nil {
				b.position = i + 1 + j
			}
		}
	}
	q.head = min(q.head, i)
	a.position = i
	q.places[i] = a
	q.added(a)
}

// after returns the position from which on the places came after the one with
// that seq. It is for those near the front, where a redeemed place was.
func (q *queue) after(seq uint64) int {
	i := q.head
	for i < len(q.places) && (q.places[i] == nil || q.places[i].seq < seq) {
		i++
	}
	return i
}

func (q *queue) added(a *attempt) {
	q.waiting++
	q.stands(a)
	switch {
	case q.byToken != nil:
		q.byToken[a.token] = a
	case q.waiting > shortQueue:
		q.byToken = make(map[dibs.Token]*attempt, 4*shortQueue)
		for _, a := range q.places[q.head:] {
			if a != nil {
				q.byToken[a.token] = a
			}
		}
	}
}

// stands is to be called when a place's end was set.
func (q *queue) stands(a *attempt) {
	if q.waiting == 1 {
		q.soonest = a.until
	} else {
		q.soonest = min(q.soonest, a.until)
	}
}

// remove takes a place away.
func (q *queue) remove(a *attempt) {
	q.places[a.position] = nil
	q.waiting--
	if q.byToken != nil {
		delete(q.byToken, a.token)
	}
	q.settle()
}

// settle restores, after places were taken away, that the head is one and that
// the gaps are not too many.
func (q *queue) settle() {
	if q.waiting == 0 {
		q.places, q.head = q.places[:0], 0
		return
	}
	for q.places[q.head] == nil {
		q.head++
	}
	if gaps := len(q.places) - q.waiting; gaps > 2*q.waiting+shortQueue {
		q.pack()
	}
}

// pack closes the gaps. It takes time in proportion to the queue, and is due
// only after as many have left.
func (q *queue) pack() {
	if len(q.places)-q.waiting < len(q.places)/2 {
		return
	}
	n := 0
	for _, a := range q.places[q.head:] {
		if a != nil {
			a.position = n
			q.places[n] = a
			n++
		}
	}
	clear(q.places[n:])
	q.places, q.head = q.places[:n], 0
	if n <= shortQueue/2 {
		q.byToken = nil
	}
}

// removeAll takes away all the places that match, and passes each to drop.
func (q *queue) removeAll(match func(*attempt) bool, drop func(*attempt)) {
	q.soonest = never
	for i, a := range q.places[q.head:] {
		switch {
		case a == nil:
		case match(a):
			q.places[q.head+i] = nil
			q.waiting--
			delete(q.byToken, a.token)
			drop(a)
		default:
			q.soonest = min(q.soonest, a.until)
		}
	}
	q.settle()
}

// looked is how many places firstEnd looks at: in a long queue, what happens
// so far back that it is not among them changes nothing soon.
const looked = 64

// firstEnd returns when the first of the places before a position runs out.
func (q *queue) firstEnd(position int, now instant) instant {
	first := never
	for _, p := range q.places[q.head:min(position, q.head+looked)] {
		if p != nil && p.until > now {
			first = min(first, p.until)
		}
	}
	return first
}

// living returns how many places have not run out.
func (q *queue) living(now instant) int {
	n := 0
	for _, a := range q.places[q.head:] {
		if a != nil && a.until > now {
			n++
		}
	}
	return n
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
		sh.finish(e, now)
	}
	sh.unlock(dibs.Token{})
}
