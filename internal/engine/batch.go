package engine

import (
	"maps"
	"math"
	"slices"

	"github.com/dibs-go/dibs"
)

const (
	// atOnce is how many places of a queue are loaded at first. When a decision needs more,
	// the number is multiplied by thenMore.
	atOnce   = 72
	thenMore = 64
)

// Tokens are, of each key, those whose places have to be known.
type Tokens map[string][]dibs.Token

// Batch is some keys that are worked on in one transaction. A store begins it, adds what
// it has loaded, has something done with the states, begins anew if that came Short, and
// writes the Changes.
type Batch struct {
	Wants Tokens
	Limit int64    // how many places of each queue are loaded from the front
	Keys  []string // in their order

	looks  bool // nothing is written
	turn   int64
	states map[string]*State
}

// NewBatch makes a batch of the keys of wants. A lease that is told lasts that turn.
func NewBatch(wants Tokens, looks bool, turn int64) *Batch {
	return &Batch{Wants: wants, Limit: atOnce, looks: looks, turn: turn}
}

// Begin forgets what was loaded. Of keys of which nothing is added nothing is known.
func (b *Batch) Begin() {
	b.Keys, b.states = slices.Sorted(maps.Keys(b.Wants)), map[string]*State{}
	for _, k := range b.Keys {
		b.states[k] = &State{
			k: k, looks: b.looks, turn: b.turn, saved: map[int64]bool{}, others: map[leaseID]*Lease{},
			queue: queue{was: map[placeID]*Place{}, length: math.MaxInt64, complete: true},
		}
	}
}

// State returns that of one of the keys.
func (b *Batch) State(k string) *State { return b.states[k] }

// AddRow adds a key's row.
func (b *Batch) AddRow(k string, w Row) {
	st, h := b.states[k], &w.Holder
	w.There, h.Permits, h.Weight = true, 1, 1
	if h.Token.IsZero() {
		*h = Lease{}
	} else {
		l := *h
		l.Fence = w.Fence
		st.holders = append(st.holders, l)
	}
	st.was, st.fence, st.free, st.record = w, w.Fence, w.Free, w.Record
}

// Now sets the server's time, and the mark that the fences of new rows must rise above.
// It comes behind the rows, because no row is deleted without raising the mark before,
// and before the places.
func (b *Batch) Now(now, mark int64) {
	for _, st := range b.states {
		if st.now = now; st.fence == 0 {
			st.fence = mark
		}
	}
}

// AddLease adds a lease that has a row of its own. They come in the order in which they
// end.
func (b *Batch) AddLease(k string, l Lease) {
	st := b.states[k]
	st.others[leaseID{l.Token, l.Abandoned}] = &l
	if was := l; l.Abandoned {
		st.lost = &was
	} else {
		st.holders = append(st.holders, l)
	}
}

// AddSaved says that something was saved under that fence.
func (b *Batch) AddSaved(k string, fence int64) { b.states[k].saved[fence] = true }

// AddPlace adds a place: the first ones of the queue, from the front, the last one, and
// those of the tokens that are wanted.
func (b *Batch) AddPlace(k string, first bool, p Place) {
	st := b.states[k]
	q := &st.queue
	if first {
		q.loaded++
		q.complete = q.loaded < b.Limit
		q.known = max(q.known, p.Seq-1) // there may be more with that Seq
	}
	q.add(&p, st.now)
}

// Queue says how many places there are at most, and that the number of a new one is to be
// at least from: for stores in which numbers have gaps.
func (b *Batch) Queue(k string, length, from int64) {
	q := &b.states[k].queue
	q.length, q.from = length, from
}

// Locked leaves out the keys without a row: somebody else has theirs.
func (b *Batch) Locked() {
	b.Keys = slices.DeleteFunc(b.Keys, func(k string) bool { return !b.states[k].was.There })
}

// Short reports whether more of a queue is needed than was loaded. Then more will be.
func (b *Batch) Short() bool {
	if slices.ContainsFunc(b.Keys, func(k string) bool { return b.states[k].short }) {
		b.Limit *= thenMore
		return true
	}
	return false
}

// Turns are the waiters that the store has to tell something.
func (b *Batch) Turns() (all []Turn) {
	for _, k := range b.Keys {
		all = append(all, b.states[k].turns...)
	}
	return all
}
