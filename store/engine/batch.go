package engine

import (
	"maps"
	"math"
	"slices"

	"github.com/dibs-go/dibs/store"
)

const (
	// loadFirst is how many places of a queue are loaded at first. If a decision needs more, the
	// number is multiplied by loadMore.
	loadFirst = 72
	loadMore  = 64
)

// Tokens are the tokens of each key whose places must be loaded.
type Tokens map[string][]store.Token

// Batch is the keys of one transaction. A store calls Begin, adds what it loads, has the states
// changed, begins anew if the batch is Short, and writes the Changes.
type Batch struct {
	Wants Tokens
	Limit int64    // how many places of each queue are loaded from the front
	Keys  []string // sorted

	// NextFence returns the fence of the next grant, if the store has one mark for all keys. Such
	// a store keeps all leases in rows of their own, and only wakes. nil: each key has its mark.
	NextFence func() int64

	// Replays says that a claim is answered from a record.
	Replays bool

	readOnly  bool
	pushedTTL int64
	states    map[string]*State
}

// NewBatch returns a batch of the keys of wants. Nothing is written if it is readOnly. The lease
// of a pushed grant lasts pushedTTL microseconds.
func NewBatch(wants Tokens, readOnly bool, pushedTTL int64) *Batch {
	return &Batch{Wants: wants, Limit: loadFirst, readOnly: readOnly, pushedTTL: pushedTTL}
}

// Begin forgets what was loaded. A key without rows is free.
func (b *Batch) Begin() {
	b.Keys, b.states = slices.Sorted(maps.Keys(b.Wants)), map[string]*State{}
	for _, k := range b.Keys {
		b.states[k] = &State{
			k: k, readOnly: b.readOnly, pushedTTL: b.pushedTTL, nextFence: b.NextFence,
			queue: queue{length: math.MaxInt64, complete: true},
		}
	}
}

// State returns the state of a key of the batch.
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
		st.hold(&l)
	}
	st.was, st.fence, st.idleSince, st.record = w, w.Fence, w.IdleSince, w.Record
}

// Now sets the time, which is least at least and most at most, and the mark that the fences of
// new rows must rise above. A store that reads one clock passes its time twice. Call it after
// AddRow, because the mark is raised before a row is deleted, and before AddPlace.
func (b *Batch) Now(least, most, mark int64) {
	for _, st := range b.states {
		if st.now, st.most = least, most; st.fence == 0 {
			st.fence = mark
		}
	}
}

// unlocked reports whether a key has no row that the transaction could lock. What later
// statements find of the key is of a claim that came in between, and is ignored.
func (b *Batch) unlocked(k string) bool { return !b.readOnly && !b.states[k].was.There }

// AddLease adds a lease that has a row of its own.
func (b *Batch) AddLease(k string, l Lease) {
	if b.unlocked(k) {
		return
	}
	st := b.states[k]
	if st.others == nil {
		st.others = map[leaseID]*Lease{}
	}
	st.others[leaseID{l.Token, l.Abandoned}] = &l
	if was := l; l.Abandoned {
		st.abandoned = &was
	} else {
		st.hold(&was)
	}
}

// hold adds a lease that was loaded.
func (st *State) hold(l *Lease) {
	st.leases.add(l)
	st.queue.last = max(st.queue.last, l.Seq)
}

// AddSaved adds that a lease with that fence saved progress.
func (b *Batch) AddSaved(k string, fence int64) {
	if !b.unlocked(k) {
		b.states[k].save(fence)
	}
}

// AddPlace adds a place: the first places of the queue in their order, the last place, and the
// places of the tokens in Wants.
func (b *Batch) AddPlace(k string, first bool, p Place) {
	if b.unlocked(k) {
		return
	}
	st := b.states[k]
	q := &st.queue
	if first {
		q.loaded++
		q.complete = q.loaded < b.Limit
		q.known = max(q.known, p.Seq-1) // more places may have that Seq
	}
	q.add(&p, st.now)
}

// Queue bounds the number of places, for stores whose numbers have gaps. A new place gets at
// least the number from.
func (b *Batch) Queue(k string, length, from int64) {
	q := &b.states[k].queue
	q.length, q.from = length, from
}

// Numbers sets how many numbers have places, for stores that count them.
func (b *Batch) Numbers(k string, n int64) {
	q := &b.states[k].queue
	q.length, q.counted = n, true
}

// Locked drops the keys without a row, because another transaction has locked their rows.
func (b *Batch) Locked() {
	b.Keys = slices.DeleteFunc(b.Keys, func(k string) bool { return !b.states[k].was.There })
}

// Short reports whether a decision needs more of a queue than was loaded. Then the next load
// gets more.
func (b *Batch) Short() bool {
	if slices.ContainsFunc(b.Keys, func(k string) bool { return b.states[k].short }) {
		b.Limit *= loadMore
		return true
	}
	return false
}

// WakeUps returns the waiters to wake once the changes are committed.
func (b *Batch) WakeUps() (all []WakeUp) {
	for _, k := range b.Keys {
		all = append(all, b.states[k].wakeUps...)
	}
	return all
}
