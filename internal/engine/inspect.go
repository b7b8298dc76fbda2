package engine

import (
	"strings"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backend"
)

// Describe tells of a key. The Condition is "" when there is nothing to tell.
func (st *State) Describe(e *dibs.Entry, q *dibs.Query) {
	st.Advance()
	st.front() // reserved places whose Hold is over
	e.Key, _ = backend.ParseKey(st.k)
	e.Waiters = len(st.queue.places)
	st.short = !st.queue.complete
	for _, p := range st.queue.places {
		if q.Places {
			e.Places = append(e.Places, dibs.PlaceInfo{
				Token: p.Token, Owner: dibs.ParseOwner(p.Owner), Left: Duration(p.Ends - st.now), Reserved: p.Kind == reserved,
			})
		}
	}
	all := st.holders
	if len(all) > 0 {
		e.Permits = int(all[0].Permits)
	}
	if st.lost != nil {
		all = append(all[:len(all):len(all)], *st.lost)
	}
	for _, l := range all {
		e.Attempts = append(e.Attempts, dibs.Attempt{
			ID: l.Token.ID(), Owner: dibs.ParseOwner(l.Owner), Fence: uint64(l.Fence), Attempt: int(l.Attempt),
			Since: Duration(st.now - l.Since), Left: Duration(l.Ends - st.now),
		})
	}
	if r := &st.record; r.Ends > st.now {
		e.Record = &dibs.RecordInfo{ID: r.Token.ID(), Age: Duration(max(st.now-r.Written, 0)), Left: Duration(r.Ends - st.now)}
		st.step(Step{Does: ReadSize, Size: &e.Record.Bytes})
		if q.Data {
			st.step(Step{Does: ReadRecord, To: &e.Record.Data})
		}
	}
	backend.Describe(e, len(st.holders) > 0, st.unknown(), st.lost != nil)
}

// Due returns what some tokens that wait have to be told, and says how many come before
// the others.
func (st *State) Due(tokens []dibs.Token, ahead map[dibs.Token]int) (due []Turn) {
	st.Advance()
	front := st.front()
	for _, t := range tokens {
		l, p := st.holder(t), st.queue.of(t)
		switch {
		case l != nil && l.Attempt == 1:
			due = append(due, Turn{Token: t, Answer: grantOf(l)})
		case p == nil, st.unknown(), st.record.Accepts(p.MaxAge, st.now),
			front != nil && front.Seq == p.Seq && st.room(p.Permits, p.Weight):
			due = append(due, Turn{Token: t})
		default:
			ahead[t] = st.ahead(p.Seq)
		}
	}
	return due
}

// Sweep removes up to limit records, places and abandoned attempts that are over, and
// returns how many it removed.
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
			delete(st.queue.was, id) // it stays
			st.queue.complete = false
		} else {
			removed++
		}
	}
	if removed == limit {
		return removed // what else there is counts for the next
	}
	lost := st.lost
	if st.Advance(); lost != nil && st.lost == nil {
		removed++
	}
	return removed
}

// bounds returns from which k, and up to which, what the query asks for is.
func bounds(q *dibs.Query) (first, last string) {
	switch {
	case q.Namespace == nil:
		return "", "\xff" // no namespace is that long
	case q.Name == "":
		first = KeyOf(dibs.Key{Namespace: *q.Namespace})
		return first, first + strings.Repeat("\xff", dibs.MaxKey+1)
	}
	k := KeyOf(dibs.Key{Namespace: *q.Namespace, Name: q.Name})
	return k, k
}
