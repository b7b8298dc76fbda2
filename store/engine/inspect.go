package engine

import (
	"math"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
)

// Describe fills an entry. Its Condition is "" if the key is free and has no record.
func (st *State) Describe(e *store.Entry, q *store.Query) {
	st.Advance()
	st.front() // which removes reserved places whose Grace is over
	st.expire(math.MaxInt)
	e.Key, _ = storekit.ParseKey(st.k)
	st.short = !st.queue.complete
	var count storekit.Queue
	for _, p := range st.queue.places {
		if p.Kind == kept {
			continue
		}
		use := count.Add(p.Seq, p.Kind == reserved, st.leases.at(p.Seq))
		if q.Places {
			e.Places = append(e.Places, store.PlaceInfo{
				Token: p.Token, Owner: store.ParseOwner(p.Owner), Left: st.left(p.Ends), Reserved: p.Kind == reserved,
				Use: use, Blocks: st.blocks(p),
			})
		}
	}
	e.Waiters, e.Reserved = count.Waiters, count.Reserved
	all := st.leases.all
	if len(all) > 0 {
		e.Permits = int(all[0].Permits)
	}
	if st.abandoned != nil {
		all = append(all[:len(all):len(all)], *st.abandoned)
	}
	for _, l := range all {
		a := store.Run{
			ID: l.Token.ID(), Owner: store.ParseOwner(l.Owner), Fence: uint64(l.Fence), Attempt: int(l.Attempt),
			Since: Duration(max(st.now-l.Since, 0)), Left: min(Duration(l.Ends-st.most), 0),
		}
		if !l.Abandoned {
			a.Left = st.left(l.Ends)
		}
		e.Runs = append(e.Runs, a)
	}
	if r := &st.record; r.Ends > st.now {
		e.Record = &store.RecordInfo{ID: r.Token.ID(), Age: Duration(max(st.now-r.Written, 0)), Left: st.left(r.Ends)}
		st.step(Step{Does: ReadSize, Size: &e.Record.Bytes})
		if q.Data {
			st.step(Step{Does: ReadRecord, To: &e.Record.Data})
		}
	}
	storekit.Describe(e, len(st.leases.all) > 0, st.unknown(), st.abandoned != nil)
}

// blocks returns how much longer a reserved place can block; 0 for a waiter.
func (st *State) blocks(p *Place) time.Duration {
	left := st.graceEnd(p) - st.most
	switch {
	case p.Kind != reserved:
		return 0
	case p.Grace > 0 && st.idleSince == 0:
		left = min(left, p.Grace)
	}
	return Duration(max(left, 0))
}

// Due returns the wake-ups of waiting tokens whose answer has changed. It sets how many places
// are ahead of the others.
func (st *State) Due(tokens []store.Token, ahead map[store.Token]int) (due []WakeUp) {
	st.Advance()
	front := st.front()
	for _, t := range tokens {
		l, p := st.leases.of(t), st.place(t)
		switch {
		case l != nil && l.Attempt == 1:
			due = append(due, WakeUp{Token: t, Answer: grantOf(l)})
		case p == nil, p.Kind == kept, st.unknown(), st.record.Accepts(p.MaxAge, st.now),
			front != nil && front.Seq == p.Seq && st.leases.room(p.Permits, p.Weight):
			due = append(due, WakeUp{Token: t})
		default:
			ahead[t] = st.ahead(p.Seq)
		}
	}
	return due
}

// Sweep deletes up to limit records, places and abandoned leases that have expired, and returns
// how many.
func (st *State) Sweep(limit int) (removed int) {
	st.short = !st.queue.complete
	if r := &st.record; limit > 0 && r.Ends > 0 && r.Ends <= st.now {
		st.erase()
		removed++
	}
	for id, p := range st.queue.was {
		if p.Ends > st.now {
			continue
		}
		if removed == limit {
			delete(st.queue.was, id) // the place stays
			st.queue.complete = false
		} else {
			removed++
		}
	}
	if removed += st.expire(limit - removed); removed == limit {
		return removed // the next sweep does the rest
	}
	return removed + st.Forgot()
}

// Forgot advances, and returns how many abandoned leases that forgot.
func (st *State) Forgot() int {
	before := st.abandoned
	if st.Advance(); before != nil && st.abandoned == nil {
		return 1
	}
	return 0
}
