package engine

import (
	"cmp"
	"slices"

	"github.com/dibs-go/dibs"
)

// The kinds of places. Of one number, the waiter comes first.
const (
	waits    = 0
	reserved = 1
)

// Place is a row of a queue: a reserved place, or a waiter. A waiter that claims from a
// reserved place has its Seq. Times are the server's, in microseconds.
type Place struct {
	Seq   int64 // its number: places are served in this order
	Token dibs.Token
	Kind  int64
	Ends  int64
	Owner string

	// Of a waiter: its claim, and the process that its grant is pushed to; 0: it is woken.
	TTL, Permits, Weight int64
	Once                 bool
	MaxAge               int64
	Process              int64
	Fingerprint          dibs.Fingerprint

	// Hold is how long a reserved place may block an idle key; 0: until it expires. Of a waiter
	// it is the new Hold of the reserved place when the waiter is granted; 0: no new one.
	Hold  int64
	Asked int64 // when a reserved place was claimed last

	Unreachable bool // its process does not listen; no column
}

// PlaceColumns are the columns of the Fields of a Place.
const PlaceColumns = "seq,token,kind,ends,owner,ttl,permits,weight,once,max_age,process,fingerprint,hold,asked"

// Fields returns pointers to the fields, in the order of PlaceColumns.
func (p *Place) Fields() []any {
	return []any{
		&p.Seq, &p.Token, &p.Kind, &p.Ends, &p.Owner, &p.TTL, &p.Permits, &p.Weight, &p.Once, &p.MaxAge, &p.Process,
		&p.Fingerprint, &p.Hold, &p.Asked,
	}
}

// queue is the places of a key that have not expired, in the order of Seq: all places, or the
// places up to a number and some beyond.
type queue struct {
	places   []*Place
	loaded   int64 // how many were loaded from the front
	length   int64 // the upper bound of how many there are
	complete bool  // all are loaded
	known    int64 // all up to that Seq are loaded
	last     int64 // the highest Seq
	from     int64 // the lowest Seq of a new place
	was      map[placeID]*Place
	cleared  []int64 // numbers whose places are all deleted
}

// placeID identifies a place.
type placeID struct {
	seq   int64
	token dibs.Token
}

// add adds a place that was loaded.
func (q *queue) add(p *Place, now int64) {
	id := placeID{p.Seq, p.Token}
	if q.was[id] != nil {
		return
	}
	was := *p
	q.was[id], q.last = &was, max(q.last, p.Seq)
	if p.Ends > now {
		q.insert(p)
	}
}

func (q *queue) insert(p *Place) {
	i, _ := slices.BinarySearchFunc(q.places, p, func(a, b *Place) int {
		return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Kind, b.Kind))
	})
	q.places, q.last = slices.Insert(q.places, i, p), max(q.last, p.Seq)
}

func (q *queue) remove(p *Place) {
	q.places = slices.DeleteFunc(q.places, func(other *Place) bool { return other == p })
}

// empty reports whether there is no place.
func (q *queue) empty() bool { return len(q.places) == 0 && q.complete }

// of returns the place of a token, or nil.
func (q *queue) of(t dibs.Token) *Place {
	if i := slices.IndexFunc(q.places, func(p *Place) bool { return p.Token == t }); i >= 0 {
		return q.places[i]
	}
	return nil
}

// next returns the number of a new place. It is behind the last place, which is always loaded,
// and behind the numbers of the leases.
func (st *State) next() int64 {
	last := max(st.queue.last, st.queue.from-1)
	for _, l := range st.holders {
		last = max(last, l.Seq)
	}
	return last + 1
}

// front returns the first place that blocks, or nil. A waiter comes before the reserved place
// with its number.
func (st *State) front() *Place { return st.first(func(*Place) bool { return false }) }

// first is front that passes some places over. It removes reserved places whose Hold is over.
func (st *State) first(passed func(*Place) bool) *Place {
	q := &st.queue
	for i := 0; i < len(q.places); {
		p := q.places[i]
		switch {
		case !q.complete && p.Seq > q.known:
			st.short = true
			return nil
		case st.leased(p.Seq), passed(p):
			i++
		case p.Kind == reserved && p.Hold > 0 && st.idleSince > 0 && max(st.idleSince, p.Asked)+p.Hold <= st.now:
			if q.remove(p); q.empty() {
				st.idleSince = 0
			}
		default:
			return p
		}
	}
	st.short = st.short || !q.complete
	return nil
}

// deleteAt deletes all places with that number, and wakes the waiters among them.
func (st *State) deleteAt(seq int64) {
	if seq == 0 {
		return
	}
	at := func(p *Place) bool { return p.Seq == seq }
	st.short = st.short || !st.queue.complete && seq > st.queue.known
	st.wakeAll(at)
	st.queue.places = slices.DeleteFunc(st.queue.places, at)
	st.queue.cleared = append(st.queue.cleared, seq)
}

// ahead returns an upper bound of the places that come before that number.
func (st *State) ahead(seq int64) int {
	q := &st.queue
	n, first, last := int64(0), int64(0), int64(0)
	for _, p := range q.places {
		if p.Seq >= seq || !q.complete && p.Seq > q.known {
			break
		}
		if p.Seq == last || st.leased(p.Seq) {
			continue
		}
		last = p.Seq
		if n++; n == 1 {
			first = p.Seq
		}
	}
	if !q.complete && seq > q.known && n > 0 {
		n = max(n, min(seq-first, q.length)) // a long queue is not counted place by place
	}
	return int(n)
}

// full reports whether the queue has as many numbers as it may have.
func (st *State) full(most int) bool {
	places := st.queue.places
	if len(places) == 0 || min(st.queue.last-places[0].Seq+1, st.queue.length) < int64(most) {
		return false
	}
	st.short = st.short || !st.queue.complete
	numbers, last := 0, int64(0)
	for _, p := range places {
		if p.Seq != last {
			numbers, last = numbers+1, p.Seq
		}
	}
	return numbers >= most
}
