package mysqlstore

import (
	"cmp"
	"slices"

	"github.com/dibs-go/dibs"
)

// The kinds of places, in the order in which those of one number come.
const (
	waits    = 0
	reserved = 1
)

// place is a row of a queue: a reserved place, or who waits, by itself or at such a place,
// which then has the same seq.
type place struct {
	seq   int64
	token dibs.Token
	kind  int64
	ends  int64
	owner string

	// Of who waits: its claim, and whether its process takes a grant that is told. What
	// must not be done twice is not told, because nobody may hear it.
	ttl, permits, weight int64
	once                 bool
	maxAge               int64
	tells                bool
	fingerprint          dibs.Fingerprint

	// Of a reserved place: how long it may keep others from room that there is; 0: until it
	// ends. Of who waits at one: what that is to be when it is granted; 0: what it was.
	hold int64

	asked int64 // of a reserved place
}

// queue is the places of a key, in the order of seq: all, or those up to a point and some
// beyond. They stand: what had ended when it was loaded is not there, and is deleted.
type queue struct {
	places   []*place
	complete bool  // there are no others
	known    int64 // all up to that seq are there
	last     int64 // the highest seq that there was
	was      map[placeID]place
	gone     []int64 // numbers of which all places are deleted
}

// placeID is what is unique of a place.
type placeID struct {
	seq   int64
	token dibs.Token
}

// add adds a place that was loaded.
func (q *queue) add(p place, now int64) {
	id := placeID{p.seq, p.token}
	if _, there := q.was[id]; there {
		return
	}
	q.was[id], q.last = p, max(q.last, p.seq)
	if p.ends > now {
		q.insert(&p)
	}
}

func (q *queue) insert(p *place) {
	i, _ := slices.BinarySearchFunc(q.places, p, func(a, b *place) int {
		return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.kind, b.kind))
	})
	q.places, q.last = slices.Insert(q.places, i, p), max(q.last, p.seq)
}

func (q *queue) remove(p *place) {
	q.places = slices.DeleteFunc(q.places, func(other *place) bool { return other == p })
}

// empty reports whether there is no place.
func (q *queue) empty() bool { return len(q.places) == 0 && q.complete }

// of returns the place of that token, or nil. Those of tokens that are asked for are
// loaded.
func (q *queue) of(t dibs.Token) *place {
	if i := slices.IndexFunc(q.places, func(p *place) bool { return p.token == t }); i >= 0 {
		return q.places[i]
	}
	return nil
}

// next returns the number of a new place: behind the last one, which is always loaded, and
// behind those at which leases were granted.
func (st *state) next() int64 {
	last := st.queue.last
	for _, l := range st.holders {
		last = max(last, l.seq)
	}
	return last + 1
}

// front returns the first place that is in the way, or nil: of a number at which somebody
// waits the waiter. Reserved places whose Hold is over are removed.
func (st *state) front() *place {
	q := &st.queue
	for i := 0; i < len(q.places); {
		p := q.places[i]
		switch {
		case !q.complete && p.seq > q.known:
			st.short = true
			return nil
		case st.leased(p.seq):
			i++
		case p.kind == reserved && p.hold > 0 && st.free > 0 && max(st.free, p.asked)+p.hold <= st.now:
			q.remove(p)
		default:
			return p
		}
	}
	st.short = st.short || !q.complete
	return nil
}

// deleteAt deletes all places with that number, and wakes those who wait there.
func (st *state) deleteAt(seq int64) {
	if seq == 0 {
		return
	}
	at := func(p *place) bool { return p.seq == seq }
	st.wakeAll(at)
	st.queue.places = slices.DeleteFunc(st.queue.places, at)
	st.queue.gone = append(st.queue.gone, seq)
}

// ahead returns how many places come before that number, at most.
func (st *state) ahead(seq int64) int {
	q := &st.queue
	n, first, last := int64(0), int64(0), int64(0)
	for _, p := range q.places {
		if p.seq >= seq || !q.complete && p.seq > q.known {
			break
		}
		if p.seq == last || st.leased(p.seq) {
			continue
		}
		last = p.seq
		if n++; n == 1 {
			first = p.seq
		}
	}
	if !q.complete && seq > q.known && n > 0 {
		n = max(n, seq-first) // in a long queue those in it are not counted one by one
	}
	return int(n)
}

// full reports whether there are as many numbers as there may be.
func (st *state) full(most int) bool {
	places := st.queue.places
	if len(places) == 0 || st.queue.last-places[0].seq+1 < int64(most) {
		return false
	}
	st.short = st.short || !st.queue.complete
	numbers, last := 0, int64(0)
	for _, p := range places {
		if p.seq != last {
			numbers, last = numbers+1, p.seq
		}
	}
	return numbers >= most
}
