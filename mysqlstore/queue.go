package mysqlstore

import (
	"slices"

	"github.com/dibs-go/dibs"
)

// The kinds of places, as they are in the table of waiters.
const (
	waits    = 0
	reserved = 1
	called   = 2 // reserved, and told that its turn has come
	taken    = 3 // by the lease with its seq
	sought   = 4 // taken, and others claimed from it meanwhile
)

// firstSeq is the seq of the first place in an empty queue. There is room before it
// for those who go back to the front.
const firstSeq = 1 << 40

// place is a place in a queue.
type place struct {
	seq         int64
	token       dibs.Token
	kind        int64
	ends, lasts int64
	once        bool
	maxAge      int64
	hold        int64 // how long a reserved one may keep others from the key in its turn; 0: all the time
	pressed     bool  // it has begun to do so, and ends when that is over
	tells       bool
	fingerprint dibs.Fingerprint
	owner       string
}

// queue is who waits for a key, in the order of seq: all, or those up to a point and
// some beyond.
type queue struct {
	places   []*place
	complete bool  // there are no others
	known    int64 // all up to that seq are there
	was      map[int64]place

	more func() error // loads what comes next; nil when all is complete
}

// add adds a place that was loaded.
func (q *queue) add(p place) {
	if _, there := q.was[p.seq]; there {
		return
	}
	if q.was == nil {
		q.was = map[int64]place{}
	}
	q.was[p.seq] = p
	q.insert(&p)
}

func (q *queue) insert(p *place) {
	i, _ := slices.BinarySearchFunc(q.places, p.seq, func(p *place, seq int64) int { return compare(p.seq, seq) })
	q.places = slices.Insert(q.places, i, p)
}

func compare(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (q *queue) remove(seq int64) {
	q.places = slices.DeleteFunc(q.places, func(p *place) bool { return p.seq == seq })
}

// empty reports whether there is no place at all, also none that is taken.
func (q *queue) empty() bool { return len(q.places) == 0 && q.complete }

// at returns the place with that seq, or nil.
func (q *queue) at(seq int64) *place {
	for _, p := range q.places {
		if p.seq == seq {
			return p
		}
	}
	return nil
}

// of returns the place of that token, or nil. Those of tokens that are asked for are
// loaded.
func (q *queue) of(t dibs.Token) *place {
	for _, p := range q.places {
		if p.token == t {
			return p
		}
	}
	return nil
}

// standing returns those who are in somebody's way, as far as they are known.
func (q *queue) standing() []*place {
	var standing []*place
	for _, p := range q.places {
		if p.kind < taken {
			standing = append(standing, p)
		}
	}
	return standing
}

// next returns the seq of a new place.
func (q *queue) next() int64 {
	if n := len(q.places); n > 0 { // the last one is known
		return q.places[n-1].seq + 1
	}
	return firstSeq
}

// front returns the first place that stands, or nil, and removes those before it that
// have run out.
func (st *state) front() (*place, error) {
	q := &st.queue
	for {
		for i := 0; i < len(q.places); {
			p := q.places[i]
			switch {
			case p.kind >= taken:
				i++
				continue
			case !q.complete && p.seq > q.known:
			case p.ends <= st.now:
				q.places = slices.Delete(q.places, i, i+1)
				continue
			default:
				return p, nil
			}
			break
		}
		if q.complete {
			return nil, nil
		}
		if err := q.more(); err != nil {
			return nil, err
		}
	}
}

// press makes the first place end after its Hold, now that the claim with place p, or
// without one if it is nil, is kept by it from a permit that is free.
func (st *state) press(front, p *place) {
	if front == nil || front == p || front.kind == waits || front.hold == 0 || front.pressed || int64(len(st.holders)) >= st.permits {
		return
	}
	front.pressed, front.ends = true, min(front.ends, st.now+front.hold)
}

// own returns the place of that token that stands, or nil. One that has run out gives
// way.
func (st *state) own(t dibs.Token) *place {
	p := st.queue.of(t)
	if p == nil || p.kind >= taken {
		return nil
	}
	if p.ends <= st.now {
		st.queue.remove(p.seq)
		return nil
	}
	return p
}

// takenBy returns the lease that has taken the place of that token, or nil.
func (st *state) takenBy(t dibs.Token) *lease {
	p := st.queue.of(t)
	if p == nil || p.kind < taken {
		return nil
	}
	for i := range st.holders {
		if st.holders[i].seq == p.seq {
			return &st.holders[i]
		}
	}
	return nil
}

// standAgain puts the place that a lease had taken, which ended then, back where it
// was.
func (st *state) standAgain(seq, ended int64) {
	if p := st.queue.at(seq); seq != 0 && p != nil {
		p.kind, p.ends, p.pressed = reserved, ended+p.lasts, false
	}
}

// giveUp ends the place that a lease had taken, and tells those who claim from it.
func (st *state) giveUp(seq int64) {
	p := st.queue.at(seq)
	if seq == 0 || p == nil {
		return
	}
	st.queue.remove(seq)
	if p.kind == sought {
		st.wake(p.token)
	}
}

// removePlace ends the place of a token, unless a lease has taken it.
func (st *state) removePlace(t dibs.Token) {
	if p := st.queue.of(t); p != nil && p.kind < taken {
		st.queue.remove(p.seq)
	}
}

// agreed reports whether there is somebody to agree with about the permits.
func (st *state) agreed() (bool, error) {
	if len(st.holders) > 0 {
		return true, nil
	}
	p, err := st.front()
	return p != nil, err
}

// ahead returns how many places come before that one, at most, and when the first of
// the next few runs out; 0 when there is none.
func (st *state) ahead(seq int64) (n, ends int64) {
	q := &st.queue
	first := int64(0)
	for _, p := range q.places {
		if p.seq >= seq {
			break
		}
		if p.kind >= taken || p.ends <= st.now {
			continue
		}
		if first == 0 {
			first = p.seq
		}
		if n++; n <= 4 && (ends == 0 || p.ends < ends) {
			ends = p.ends
		}
	}
	if !q.complete && seq > q.known && first != 0 {
		n = max(n, seq-first) // in a long queue those in it are not counted one by one
	}
	return n, ends
}
