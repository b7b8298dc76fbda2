package engine

import (
	"math"
	"slices"
	"sort"

	"github.com/dibs-go/dibs/store"
)

// The kinds of places. Of one number, the waiter comes first. A kept place is that of a waiter whose
// grant was pushed to a process that relays (see store.Relayer), or that was passed over there: it
// keeps the waiter's number, and blocks nobody.
const (
	waits    = 0
	reserved = 1
	kept     = 2
)

// Place is a row of a queue: a reserved place, or a waiter. A waiter that claims from a
// reserved place has its Seq. Times are the server's, in microseconds.
type Place struct {
	Seq   int64       `json:",omitzero"` // its number: places are served in this order
	Token store.Token `json:",omitzero"`
	Kind  int64       `json:",omitzero"`
	Ends  int64       `json:",omitzero"`
	Owner string      `json:",omitzero"`

	// Of a waiter: its claim, and the process that its grant is pushed to; 0: it is woken. The number
	// of a process that relays is negative.
	TTL, Permits, Weight int64             `json:",omitzero"`
	Once                 bool              `json:",omitzero"`
	MaxAge               int64             `json:",omitzero"`
	Process              int64             `json:",omitzero"`
	Fingerprint          store.Fingerprint `json:",omitzero"`

	// Grace is how long a reserved place may block an idle key; 0: until it expires. Of a waiter
	// it is the new Grace of the reserved place when the waiter is granted; 0: no new one.
	Grace int64 `json:",omitzero"`
	Asked int64 `json:",omitzero"` // when a reserved place was claimed last

	// No columns:
	Unreachable bool `json:"-"` // its process does not listen
	woken       bool // since it asked last
}

// PlaceColumns are the columns of the Fields of a Place.
const PlaceColumns = "seq,token,kind,ends,owner,ttl,permits,weight,once,max_age,process,fingerprint,grace,asked"

// Fields returns pointers to the fields, in the order of PlaceColumns.
func (p *Place) Fields() []any {
	return []any{
		&p.Seq, &p.Token, &p.Kind, &p.Ends, &p.Owner, &p.TTL, &p.Permits, &p.Weight, &p.Once, &p.MaxAge, &p.Process,
		&p.Fingerprint, &p.Grace, &p.Asked,
	}
}

// queue is the places of a key, in the order of Seq: all places, or the places up to a number
// and some beyond. Places that have expired are removed when they are met.
type queue struct {
	places   []*Place
	index    map[store.Token]*Place // nil while there are few
	spare    []*Place               // to be used again, in memory
	soonest  int64                  // none expires before
	loaded   int64                  // how many were loaded from the front
	length   int64                  // the upper bound of how many there are
	counted  bool                   // length is how many numbers there are
	complete bool                   // all are loaded
	known    int64                  // all up to that Seq are loaded
	last     int64                  // the highest Seq, of leases, too
	from     int64                  // the lowest Seq of a new place
	was      map[placeID]*Place
	cleared  []int64 // numbers whose places are all deleted
}

// placeID identifies a place.
type placeID struct {
	seq   int64
	token store.Token
}

// add adds a place that was loaded.
func (q *queue) add(p *Place, now int64) {
	id := placeID{p.Seq, p.Token}
	if q.was[id] != nil {
		return
	}
	if q.was == nil {
		q.was = map[placeID]*Place{}
	}
	was := *p
	q.was[id], q.last = &was, max(q.last, p.Seq)
	if p.Ends > now {
		q.insert(p)
	}
}

// find returns the index of the first place that comes after those with a lower number, and
// after those with that number and a lower kind.
func (q *queue) find(seq, kind int64) int {
	return sort.Search(len(q.places), func(i int) bool {
		p := q.places[i]
		return p.Seq > seq || p.Seq == seq && p.Kind >= kind
	})
}

// insert puts a place behind those with its number and kind.
func (q *queue) insert(p *Place) {
	i := len(q.places)
	if i > 0 && p.Seq <= q.places[i-1].Seq {
		i = q.find(p.Seq, p.Kind+1)
	}
	q.places, q.last = slices.Insert(q.places, i, p), max(q.last, p.Seq)
	q.lasts(p.Ends)
	switch {
	case q.index != nil:
		q.index[p.Token] = p
	case len(q.places) > few:
		q.index = make(map[store.Token]*Place, 4*few)
		for _, p := range q.places {
			q.index[p.Token] = p
		}
	}
}

// lasts notes when a place expires.
func (q *queue) lasts(ends int64) {
	if len(q.places) == 1 {
		q.soonest = ends
	} else {
		q.soonest = min(q.soonest, ends)
	}
}

// remove removes the place at an index. It costs nothing at the front, because most end there.
func (q *queue) remove(i int) {
	if q.index != nil {
		delete(q.index, q.places[i].Token)
	}
	if i == 0 {
		q.places[0] = nil
		q.places = q.places[1:]
	} else {
		q.places = slices.Delete(q.places, i, i+1)
	}
	if len(q.places) == 0 {
		q.index = nil
	}
}

// make returns a place that is not in the queue yet.
func (q *queue) make(t store.Token, kind int64) *Place {
	n := len(q.spare) - 1
	if n < 0 {
		return &Place{Token: t, Kind: kind}
	}
	p := q.spare[n]
	q.spare = q.spare[:n]
	*p = Place{Token: t, Kind: kind}
	return p
}

// empty reports whether there is no place.
func (q *queue) empty() bool { return len(q.places) == 0 && q.complete }

// drop removes a place, and returns the index that it had.
func (st *State) drop(p *Place) int {
	q := &st.queue
	i := 0
	if q.places[0] != p { // most end in front
		i = q.find(p.Seq, p.Kind)
	}
	for q.places[i] != p {
		i++
	}
	st.dropAt(i)
	return i
}

// keepNumber leaves a waiter its number, and nothing else.
func (st *State) keepNumber(p *Place) {
	i := st.queue.find(p.Seq, p.Kind)
	for st.queue.places[i] != p {
		i++
	}
	st.queue.remove(i)
	p.Kind = kept
	st.queue.insert(p)
}

// dropAt removes the place at an index. The last one ends the count of a Grace.
func (st *State) dropAt(i int) {
	if q := &st.queue; q.was == nil && len(q.spare) < few {
		q.spare = append(q.spare, q.places[i])
	}
	if st.queue.remove(i); st.queue.empty() {
		st.idleSince = 0
	}
}

// place returns the place of a token, or nil.
func (st *State) place(t store.Token) *Place {
	q := &st.queue
	var p *Place
	if q.index != nil {
		p = q.index[t]
	} else if i := slices.IndexFunc(q.places, func(p *Place) bool { return p.Token == t }); i >= 0 {
		p = q.places[i]
	}
	if p != nil && p.Ends <= st.now {
		st.drop(p)
		return nil
	}
	return p
}

// expire removes up to limit places that have expired, and returns how many.
func (st *State) expire(limit int) (n int) {
	q := &st.queue
	if len(q.places) == 0 || q.soonest > st.now {
		return 0
	}
	q.soonest = never
	for i := 0; i < len(q.places); {
		if p := q.places[i]; p.Ends <= st.now && n < limit {
			st.dropAt(i)
			n++
		} else {
			q.soonest = min(q.soonest, p.Ends)
			i++
		}
	}
	return n
}

// next returns the number of a new place: behind the last place, which is always loaded, and
// behind the numbers of the leases.
func (st *State) next() int64 { return max(st.queue.last+1, st.queue.from) }

// front returns the first place that blocks, or nil. A waiter comes before the reserved place
// with its number.
func (st *State) front() *Place { return st.first(func(*Place) bool { return false }) }

// first is front that passes some places over. It removes reserved places whose Grace is over.
func (st *State) first(passed func(*Place) bool) *Place {
	q := &st.queue
	for i := 0; i < len(q.places); {
		p := q.places[i]
		switch {
		case !q.complete && p.Seq > q.known:
			st.short = true
			return nil
		case p.Ends <= st.now:
			st.dropAt(i)
		case p.Kind == kept, st.leases.at(p.Seq), passed(p):
			i++
		case st.graceEnd(p) <= st.now:
			st.dropAt(i)
		default:
			return p
		}
	}
	st.short = st.short || !q.complete
	return nil
}

// graceEnd returns when a place in front stops blocking the key if nothing happens.
func (st *State) graceEnd(p *Place) int64 {
	if p.Kind == reserved && p.Grace > 0 && st.idleSince > 0 {
		return min(p.Ends, max(st.idleSince, p.Asked)+p.Grace)
	}
	return p.Ends
}

// deleteAt deletes all places with that number, and wakes the waiters among them.
func (st *State) deleteAt(seq int64) {
	if seq == 0 {
		return
	}
	q := &st.queue
	st.short = st.short || !q.complete && seq > q.known
	for i := q.find(seq, waits); i < len(q.places) && q.places[i].Seq == seq; {
		if p := q.places[i]; p.Kind == waits {
			st.wake(p)
		}
		st.dropAt(i)
	}
	if !q.complete || q.was != nil {
		q.cleared = append(q.cleared, seq)
	}
}

// looked is how many places are counted one by one.
const looked = 96

// ahead returns an upper bound of the places that come before that number.
func (st *State) ahead(seq int64) int {
	q := &st.queue
	if len(q.places) == 0 {
		return 0
	}
	// A long queue is not counted place by place.
	if most := min(seq-q.places[0].Seq, int64(len(q.places))); most > looked && q.complete && st.leases.placed == 0 {
		return int(most)
	}
	n, first, last := int64(0), int64(0), int64(0)
	for i, p := range q.places {
		if p.Seq >= seq || !q.complete && p.Seq > q.known {
			break
		}
		if n == looked && q.complete {
			return int(min(seq-first, looked+int64(len(q.places)-i)))
		}
		if p.Seq == last || p.Kind == kept || st.leases.at(p.Seq) {
			continue
		}
		last = p.Seq
		if n++; n == 1 {
			first = p.Seq
		}
	}
	if !q.complete && seq > q.known && n > 0 {
		n = max(n, min(seq-first, q.length))
	}
	return int(n)
}

// full reports whether the queue has as many numbers as it may have.
func (st *State) full(most int) bool {
	q := &st.queue
	if len(q.places) == 0 || min(q.last-q.places[0].Seq+1, q.length) < int64(most) || q.complete && len(q.places) < most {
		return false
	}
	if q.counted {
		return true
	}
	st.short = st.short || !q.complete
	st.expire(math.MaxInt)
	numbers, last := 0, int64(0)
	for _, p := range q.places {
		if p.Seq != last {
			numbers, last = numbers+1, p.Seq
		}
	}
	return numbers >= most
}
