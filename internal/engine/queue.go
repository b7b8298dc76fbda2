package engine

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

// Place is a row of a queue: a reserved place, or a waiter. A waiter that came from a
// reserved place has the same Seq.
type Place struct {
	Seq   int64
	Token dibs.Token
	Kind  int64
	Ends  int64
	Owner string

	// Of who waits: its claim, and the process that takes a grant that is told, 0 for
	// none.
	TTL, Permits, Weight int64
	Once                 bool
	MaxAge               int64
	Process              int64
	Fingerprint          dibs.Fingerprint

	// Hold is, of a reserved place, how long it may keep others from room that there is; 0:
	// until it ends. Of who waits at one it is what that becomes when the waiter is granted;
	// 0: what it was.
	Hold  int64
	Asked int64 // when a reserved place was asked for last

	Deaf bool // nobody listens there, as the store knows; not a field
}

// PlaceColumns are the names of its Fields.
const PlaceColumns = "seq,token,kind,ends,owner,ttl,permits,weight,once,max_age,process,fingerprint,hold,asked"

// Fields returns where they are.
func (p *Place) Fields() []any {
	return []any{
		&p.Seq, &p.Token, &p.Kind, &p.Ends, &p.Owner, &p.TTL, &p.Permits, &p.Weight, &p.Once, &p.MaxAge, &p.Process,
		&p.Fingerprint, &p.Hold, &p.Asked,
	}
}

// queue is the places of a key, in the order of Seq: all, or those up to a point and some
// beyond. They stand: what had ended when it was loaded is not there, and is deleted.
type queue struct {
	places   []*Place
	loaded   int64 // how many are from the front
	length   int64 // there are at most so many
	complete bool  // there are no others
	known    int64 // all up to that Seq are there
	last     int64 // the highest Seq that there was
	from     int64 // a new one is at least that
	was      map[placeID]*Place
	gone     []int64 // numbers of which all places are deleted
}

// placeID is what is unique of a place.
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

// of returns the place of that token, or nil. Those of tokens that are asked for are
// loaded.
func (q *queue) of(t dibs.Token) *Place {
	if i := slices.IndexFunc(q.places, func(p *Place) bool { return p.Token == t }); i >= 0 {
		return q.places[i]
	}
	return nil
}

// next returns the number of a new place: behind the last one, which is always loaded, and
// behind those at which leases were granted.
func (st *State) next() int64 {
	last := max(st.queue.last, st.queue.from-1)
	for _, l := range st.holders {
		last = max(last, l.Seq)
	}
	return last + 1
}

// front returns the first place that is in the way, or nil: of a number at which somebody
// waits the waiter.
func (st *State) front() *Place { return st.first(func(*Place) bool { return false }) }

// first does that, and passes some over. Reserved places whose Hold is over are removed.
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
		case p.Kind == reserved && p.Hold > 0 && st.free > 0 && max(st.free, p.Asked)+p.Hold <= st.now:
			if q.remove(p); q.empty() {
				st.free = 0
			}
		default:
			return p
		}
	}
	st.short = st.short || !q.complete
	return nil
}

// deleteAt deletes all places with that number, and wakes those who wait there.
func (st *State) deleteAt(seq int64) {
	if seq == 0 {
		return
	}
	at := func(p *Place) bool { return p.Seq == seq }
	st.short = st.short || !st.queue.complete && seq > st.queue.known
	st.wakeAll(at)
	st.queue.places = slices.DeleteFunc(st.queue.places, at)
	st.queue.gone = append(st.queue.gone, seq)
}

// ahead returns how many places come before that number, at most.
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
		n = max(n, min(seq-first, q.length)) // in a long queue those in it are not counted one by one
	}
	return int(n)
}

// full reports whether there are as many numbers as there may be.
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
