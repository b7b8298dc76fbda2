package engine

import (
	"math"
	"slices"
	"time"

	"github.com/dibs-go/dibs/store"
)

// Lease is a lease of a key, or the last lease that was abandoned. Then Attempt is how many were
// abandoned in a row. Times are the server's, in microseconds.
type Lease struct {
	Token           store.Token       `json:",omitzero"`
	Abandoned       bool              `json:",omitzero"`
	Fence, Attempt  int64             `json:",omitzero"`
	Since, Ends     int64             `json:",omitzero"` // Ends is 0 if a transaction of the application settled it
	Once            bool              `json:",omitzero"`
	Seq             int64             `json:",omitzero"` // the number of the reserved place at which it was granted; 0: none
	Inherits        int64             `json:",omitzero"` // the fence under which the progress was saved that it inherits; 0: none
	Permits, Weight int64             `json:",omitzero"`
	Fingerprint     store.Fingerprint `json:",omitzero"`
	Owner           string            `json:",omitzero"`
}

// LeaseColumns are the columns of the Fields of a Lease.
const LeaseColumns = "token,abandoned,fence,attempt,since,ends,once,seq,inherits,permits,weight,fingerprint,owner"

// Fields returns pointers to the fields, in the order of LeaseColumns.
func (l *Lease) Fields() []any {
	return []any{
		&l.Token, &l.Abandoned, &l.Fence, &l.Attempt, &l.Since, &l.Ends, &l.Once, &l.Seq, &l.Inherits, &l.Permits, &l.Weight,
		&l.Fingerprint, &l.Owner,
	}
}

// Record is the record of a key, without its data.
type Record struct {
	Token         store.Token       `json:",omitzero"`
	Written, Ends int64             `json:",omitzero"` // Ends is 0 if there is no record
	Fingerprint   store.Fingerprint `json:",omitzero"`
}

// Row is a key's row. It has the lease of a key with one permit. Leases of keys with more permits
// have rows of their own.
type Row struct {
	There     bool   `json:"-"`         // it is in the table
	Fence     int64  `json:",omitzero"` // the highest of the key
	Busy      bool   `json:",omitzero"` // other tables have rows of the key
	IdleSince int64  `json:",omitzero"` // since when a reserved place has blocked the idle key; 0: none does
	Holder    Lease  `json:",omitzero"`
	Record    Record `json:",omitzero"`
}

// RowColumns are the columns of the Fields of a Row.
const RowColumns = "fence,busy,idle_since,token,attempt,since,ends,once,seq,inherits,fingerprint,owner," +
	"rec_token,rec_written,rec_ends,rec_fingerprint"

// Fields returns pointers to the fields, in the order of RowColumns.
func (w *Row) Fields() []any {
	h, r := &w.Holder, &w.Record
	return []any{
		&w.Fence, &w.Busy, &w.IdleSince, &h.Token, &h.Attempt, &h.Since, &h.Ends, &h.Once, &h.Seq, &h.Inherits, &h.Fingerprint, &h.Owner,
		&r.Token, &r.Written, &r.Ends, &r.Fingerprint,
	}
}

// State is the state of a key. In a store on a server, it belongs to a transaction that has
// locked the key's row or is read-only: it is loaded and changed in memory, and the difference
// is written.
type State struct {
	k         string
	readOnly  bool
	now       int64 // one moment for the whole transaction, or no later: what ends is over by it
	most      int64 // that moment, or no earlier: what begins lasts from it
	pushedTTL int64
	nextFence func() int64 // of a store with one mark for all keys; it only wakes. nil: the key's
	was       Row          // as it was loaded
	short     bool         // a decision needs more of the queue

	fence     int64
	idleSince int64 // since when a reserved place has blocked the idle key; 0: none does
	leases    leases
	abandoned *Lease // the last lease that was abandoned
	record    Record
	queue     queue

	saved   map[int64]bool     // the fences under which progress was saved
	others  map[leaseID]*Lease // leases with rows of their own, as they were loaded
	wakeUps []WakeUp
	steps   []Step

	lastOwner store.Owner // and its text, because it is often the same
	ownerText string
}

// leaseID identifies a lease with a row of its own.
type leaseID struct {
	token     store.Token
	abandoned bool
}

// WakeUp is for a waiter. It carries the pushed grant, or has the waiter ask.
type WakeUp struct {
	Token   store.Token
	Process int64        // of its place
	Answer  store.Answer // the grant; the zero Answer: ask
}

// abandonedRetention is how long an abandoned lease is remembered, in microseconds.
const abandonedRetention = int64(store.AbandonedRetention / time.Microsecond)

// Micros returns a duration in microseconds, rounded up.
func Micros(d time.Duration) int64 {
	n := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		n++
	}
	return n
}

// Duration returns the duration of that many microseconds.
func Duration(us int64) time.Duration {
	if us > math.MaxInt64/1000 {
		return math.MaxInt64
	}
	return time.Duration(us) * time.Microsecond
}

// unknown reports whether the key is not granted before an operator resolves it.
func (st *State) unknown() bool { return st.abandoned != nil && st.abandoned.Once }

// differs reports whether a lease, or the abandoned lease, has another fingerprint.
func (st *State) differs(f *store.Fingerprint) bool {
	return st.abandoned != nil && st.abandoned.Fingerprint.Differs(*f) || st.leases.differ(f)
}

// Accepts reports whether the record answers a claim with that MaxAge, in microseconds.
func (r *Record) Accepts(maxAge, now int64) bool {
	return maxAge > 0 && r.Ends > now && r.Written >= now-maxAge
}

// Answer returns a record that has not ended as an answer, without its data.
func (r *Record) Answer(least, most int64) store.Record {
	return store.Record{Age: Duration(max(least-r.Written, 0)), Left: Duration(max(r.Ends-most, 1))}
}

// left returns how much longer something lasts, at least, that has not ended.
func (st *State) left(ends int64) time.Duration { return Duration(max(ends-st.most, 1)) }

// Of reports whether there is a record and the token wrote it.
func (r *Record) Of(t store.Token, now int64) bool { return r.Token == t && r.Ends > now }

// Advance lets time pass: it ends what has expired, in the order in which it expired, and serves
// the waiters that this frees the key for.
func (st *State) Advance() {
	if st.queue.empty() {
		st.idleSince = 0 // no place is left to block the key
	}
	if len(st.leases.all) > 0 && st.leases.soonest <= st.now {
		st.end()
	}
	if st.abandoned != nil && !st.abandoned.Once && st.abandoned.Ends+abandonedRetention <= st.now {
		st.abandoned = nil
	}
	st.serve()
}

// end ends the leases that have expired, or that a transaction of the application settled.
func (st *State) end() {
	for _, l := range st.leases.takeOver(st.now) {
		if l.Ends > 0 {
			st.abandon(&l, l.Ends)
			continue
		}
		if st.clean(l.Seq); st.record.Of(l.Token, st.now) {
			st.answerAll()
		}
	}
}

// serve hands the key over to the waiters in front while there is room. It pushes the grant if
// the grant is all that the waiter needs, and otherwise wakes the waiter. It passes over waiters
// that cannot be reached, and stops at a reserved place without a waiter. The caller of a process
// that relays is likely to ask elsewhere within PushedTTL, so its grant is pushed even if nobody
// hears of it, and the waiter keeps its number if that grant expires.
func (st *State) serve() {
	for !st.readOnly && !st.unknown() {
		passed := false
		p := st.first(func(p *Place) bool {
			pass := p.Unreachable && p.Process > 0
			passed = passed || pass
			return pass
		})
		switch {
		case p == nil, p.Kind == reserved, !st.leases.room(p.Permits, p.Weight):
			return
		case p.Process == 0, p.Once, st.abandoned != nil, st.record.Accepts(p.MaxAge, st.now), st.differs(&p.Fingerprint):
			if p.Unreachable {
				st.keepNumber(p)
				continue
			}
			if !passed { // else the waiter would ask in vain, because a claim passes no place over
				st.wake(p)
			}
			return
		}
		l := Lease{
			Token: p.Token, Ends: st.most + min(st.pushedTTL, p.TTL), Permits: p.Permits, Weight: p.Weight,
			Fingerprint: p.Fingerprint, Owner: p.Owner,
		}
		own := p
		if p.Process < 0 {
			st.keepNumber(p)
			own = nil
		}
		st.wakeUps = append(st.wakeUps, WakeUp{p.Token, p.Process, grantOf(st.grant(&l, own, p, p.Grace))})
	}
}

// grant makes a lease with the next fence. own is the place of its token, or nil. at is the
// place whose number it is granted at, or nil. A grace that is not 0 becomes the Grace of the
// reserved place there.
func (st *State) grant(l *Lease, own, at *Place, grace int64) *Lease {
	i := -1
	if own != nil && own.Kind != reserved {
		i = st.drop(own)
	}
	if at != nil {
		q := &st.queue
		if at != own || i < 0 {
			i = q.find(at.Seq, waits)
		}
		for i > 0 && q.places[i-1].Seq == at.Seq {
			i--
		}
		for ; i < len(q.places) && q.places[i].Seq == at.Seq; i++ {
			p := q.places[i]
			if l.Seq = p.Seq; p.Kind == reserved && grace > 0 {
				p.Grace = grace
			}
		}
	}
	st.idleSince = 0
	if st.nextFence != nil {
		st.fence = st.nextFence()
	} else {
		st.fence = max(st.fence+1, st.now)
	}
	l.Fence, l.Attempt, l.Since = st.fence, 1, st.most
	if st.abandoned != nil {
		l.Attempt, l.Inherits = st.abandoned.Attempt+1, st.abandoned.Inherits
	}
	return st.leases.add(l)
}

// owner returns the text of an owner.
func (st *State) owner(o *store.Owner) string {
	if st.ownerText == "" || st.lastOwner != *o {
		st.lastOwner, st.ownerText = *o, o.String()
	}
	return st.ownerText
}

// grantOf returns the answer that grants a lease.
func grantOf(l *Lease) store.Answer {
	return store.Answer{State: store.Granted, Fence: uint64(l.Fence), Attempt: int(l.Attempt)}
}

// wake has a waiter ask, once until it does.
func (st *State) wake(p *Place) {
	if !p.woken {
		p.woken = true
		st.wakeUps = append(st.wakeUps, WakeUp{Token: p.Token, Process: p.Process})
	}
}

// wakeAll wakes all waiters that accept records of some age, or all waiters.
func (st *State) wakeAll(recordsOnly bool) {
	st.short = st.short || !st.queue.complete
	for _, p := range st.queue.places {
		if p.Kind == waits && (!recordsOnly || p.MaxAge > 0) {
			st.wake(p)
		}
	}
}

// answerAll wakes the waiters that the record may answer.
func (st *State) answerAll() { st.wakeAll(true) }

// tidy deletes progress that no lease inherits.
func (st *State) tidy() {
	for fence := range st.saved {
		is := func(l Lease) bool { return l.Fence == fence || l.Inherits == fence }
		if !slices.ContainsFunc(st.leases.all, is) && (st.abandoned == nil || !is(*st.abandoned)) {
			delete(st.saved, fence)
			st.step(Step{Does: DropProgress, Fence: fence})
		}
	}
}

// Row returns the key's row as it is written.
func (st *State) Row() Row {
	w := Row{There: true, Fence: st.fence, IdleSince: st.idleSince, Record: st.record}
	w.Busy = !st.queue.empty() || st.abandoned != nil || len(st.saved) > 0
	if st.queue.empty() {
		w.IdleSince = 0
	}
	for _, l := range st.leases.all {
		if l.Permits == 1 {
			w.Holder = l
			w.Holder.Fence = 0 // that of the row is its
		} else {
			w.Busy = true
		}
	}
	return w
}
