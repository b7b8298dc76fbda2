package engine

import (
	"math"

	"github.com/dibs-go/dibs/store"
)

// What follows is for a store in memory. It keeps the State of each key between calls, with all
// places and without differences, carries the steps out after each call, and has timers.

// NewState returns the State of a free key. nextFence returns the fence of the next grant.
func NewState(nextFence func() int64) *State {
	return &State{nextFence: nextFence, queue: queue{complete: true, length: math.MaxInt64}}
}

// Reuse makes a State that is Idle that of another key, which has that record.
func (st *State) Reuse(r Record) {
	st.record, st.fence, st.idleSince, st.queue.last = r, 0, 0, 0
}

// At sets the time. It must be more than 0, and never falls.
func (st *State) At(now int64) { st.now, st.most = now, now }

// Idle reports whether the key has neither leases nor places, and no abandoned lease.
func (st *State) Idle() bool {
	return len(st.leases.all) == 0 && len(st.queue.places) == 0 && st.abandoned == nil
}

// Record returns the record's header.
func (st *State) Record() Record { return st.record }

// Holds advances, and returns the fence of the token's lease, or 0.
func (st *State) Holds(t store.Token) int64 {
	st.Advance()
	if l := st.leases.of(t); l != nil {
		return l.Fence
	}
	return 0
}

// Resolves advances, and reports whether Resolve with that ID would change anything.
func (st *State) Resolves(id string) bool {
	st.Advance()
	return st.unknown() && (id == "" || st.abandoned.Token.ID() == id)
}

// Done returns what the calls since the last Done have left to do. Both are valid until the next
// call.
func (st *State) Done() (steps []Step, wakeUps []WakeUp) {
	if len(st.saved) > 0 {
		st.tidy()
	}
	steps, wakeUps = st.steps, st.wakeUps
	st.steps, st.wakeUps = st.steps[:0], st.wakeUps[:0]
	return steps, wakeUps
}

// Turn returns when something expires that can make it a waiter's turn; math.MaxInt64 if nothing
// does.
func (st *State) Turn() int64 {
	next := int64(never)
	if len(st.queue.places) == 0 || st.unknown() {
		return next
	}
	if p := st.front(); p != nil {
		next = st.graceEnd(p)
	}
	if len(st.leases.all) > 0 {
		next = min(next, st.leases.soonest)
	}
	return next
}

// Soonest returns a time before which nothing of the key expires; math.MaxInt64 if nothing does.
func (st *State) Soonest() int64 {
	soonest := int64(never)
	if len(st.leases.all) > 0 {
		soonest = st.leases.soonest
	}
	if len(st.queue.places) > 0 {
		soonest = min(soonest, st.queue.soonest)
	}
	if st.record.Ends != 0 {
		soonest = min(soonest, st.record.Ends)
	}
	if a := st.abandoned; a != nil && !a.Once {
		soonest = min(soonest, a.Ends+abandonedRetention)
	}
	return soonest
}

// Drop forgets the record, whose data the store has deleted.
func (st *State) Drop() { st.record = Record{} }
