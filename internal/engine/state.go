package engine

import (
	"math"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
)

// Lease is a lease of a key, or the last one that was abandoned: its Attempt is how many
// were then, in a row. Times are the server's, in microseconds.
type Lease struct {
	Token           dibs.Token
	Abandoned       bool
	Fence, Attempt  int64
	Since, Ends     int64 // Ends is 0 when it was settled in a transaction of the application's
	Once            bool
	Seq             int64 // of the reserved place at which it was granted; 0: none
	Heir            int64 // of what was saved under that fence; 0: of nothing
	Permits, Weight int64
	Fingerprint     dibs.Fingerprint
	Owner           string
}

// LeaseColumns are the names of its Fields.
const LeaseColumns = "token,abandoned,fence,attempt,since,ends,once,seq,heir,permits,weight,fingerprint,owner"

// Fields returns where they are.
func (l *Lease) Fields() []any {
	return []any{
		&l.Token, &l.Abandoned, &l.Fence, &l.Attempt, &l.Since, &l.Ends, &l.Once, &l.Seq, &l.Heir, &l.Permits, &l.Weight,
		&l.Fingerprint, &l.Owner,
	}
}

// Record is what a key's last holder left behind, but for its data.
type Record struct {
	Token         dibs.Token
	Written, Ends int64 // Ends is 0 when there is none
	Fingerprint   dibs.Fingerprint
}

// Row is a key's row. The lease of a key with one permit is in it, and of keys with
// more in rows of their own.
type Row struct {
	There  bool // it is in the table
	Fence  int64
	Busy   bool // there is more to know than this row and the record
	Free   int64
	Holder Lease
	Record Record
}

// RowColumns are the names of its Fields.
const RowColumns = "fence,busy,free,token,attempt,since,ends,once,seq,heir,fingerprint,owner," +
	"rec_token,rec_written,rec_ends,rec_fingerprint"

// Fields returns where they are.
func (w *Row) Fields() []any {
	h, r := &w.Holder, &w.Record
	return []any{
		&w.Fence, &w.Busy, &w.Free, &h.Token, &h.Attempt, &h.Since, &h.Ends, &h.Once, &h.Seq, &h.Heir, &h.Fingerprint, &h.Owner,
		&r.Token, &r.Written, &r.Ends, &r.Fingerprint,
	}
}

// State is a key that is being worked on. Whoever does so has its row locked, or
// only looks: it is loaded, changed in memory, and what is different then is
// written.
type State struct {
	k     string
	looks bool  // nothing is written
	now   int64 // one moment for all that is done
	turn  int64 // how long a lease lasts that is told
	was   Row
	short bool // more has to be loaded of the queue to know

	fence   int64
	free    int64 // since when a reserved place keeps others from room that there is
	holders []Lease
	lost    *Lease // the last one that was abandoned
	record  Record
	queue   queue

	saved  map[int64]bool     // the fences of leases under which something was saved
	others map[leaseID]*Lease // leases in rows of their own, as they are there
	turns  []Turn             // the waiters that have to be told something
	steps  []Step
}

// leaseID is what is unique of a lease in a row of its own.
type leaseID struct {
	token     dibs.Token
	abandoned bool
}

// Turn is what a waiter has to be told.
type Turn struct {
	Token   dibs.Token
	Process int64       // that of its place
	Answer  dibs.Answer // its State is zero when it should ask
}

// memory is how long an abandoned lease is remembered.
const memory = int64(dibs.AbandonedRetention / time.Microsecond)

// Micros counts microseconds, rounded up.
func Micros(d time.Duration) int64 {
	n := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		n++
	}
	return n
}

// Duration is so many microseconds.
func Duration(us int64) time.Duration {
	if us > math.MaxInt64/1000 {
		return math.MaxInt64
	}
	return time.Duration(us) * time.Microsecond
}

// unknown reports whether nobody may be granted before somebody resolves the key.
func (st *State) unknown() bool { return st.lost != nil && st.lost.Once }

// holder returns the lease of a token, or nil.
func (st *State) holder(t dibs.Token) *Lease {
	if i := slices.IndexFunc(st.holders, func(l Lease) bool { return l.Token == t }); i >= 0 {
		return &st.holders[i]
	}
	return nil
}

// leased reports whether a lease was granted at that number: its places are in nobody's way.
func (st *State) leased(seq int64) bool {
	return slices.ContainsFunc(st.holders, func(l Lease) bool { return l.Seq == seq })
}

// room reports whether the leases leave room for a claim.
func (st *State) room(permits, weight int64) bool {
	for _, l := range st.holders {
		if weight += l.Weight; l.Permits != permits {
			return false
		}
	}
	return weight <= permits
}

// differs reports whether a holder, or who abandoned the key last, does something else.
func (st *State) differs(f dibs.Fingerprint) bool {
	return st.lost != nil && st.lost.Fingerprint.Differs(f) ||
		slices.ContainsFunc(st.holders, func(l Lease) bool { return l.Fingerprint.Differs(f) })
}

// Accepts reports whether the record answers a claim with that MaxAge.
func (r *Record) Accepts(maxAge, now int64) bool {
	return maxAge > 0 && r.Ends > now && r.Written >= now-maxAge
}

// Of reports whether it is there, and of that token.
func (r *Record) Of(t dibs.Token, now int64) bool { return r.Token == t && r.Ends > now }

// Advance lets time pass: what is over is dead, and what that frees is handed over. The
// leases were loaded in the order in which they end.
func (st *State) Advance() {
	if st.queue.empty() {
		st.free = 0 // the count of Holds ends with the last place
	}
	for i := 0; i < len(st.holders); {
		l := st.holders[i]
		if l.Ends > st.now {
			i++
			continue
		}
		st.holders = slices.Delete(st.holders, i, i+1)
		if l.Ends > 0 {
			st.abandon(l, l.Ends)
			continue
		}
		if st.clean(l); st.record.Of(l.Token, st.now) {
			st.short = st.short || !st.queue.complete
			st.wakeAll(func(p *Place) bool { return p.MaxAge > 0 })
		}
	}
	if st.lost != nil && !st.lost.Once && st.lost.Ends+memory <= st.now {
		st.lost = nil
	}
	st.serve()
}

// serve hands the key over to those in front, as far as there is room: it grants it where
// the grant is all that there is to tell, and otherwise has the waiter ask. Who is deaf
// is passed over. A reserved place that nobody waits at stops it.
func (st *State) serve() {
	for !st.looks && !st.unknown() {
		passed := false
		p := st.first(func(p *Place) bool {
			passed = passed || p.Deaf
			return p.Deaf
		})
		switch {
		case p == nil, p.Kind == reserved, !st.room(p.Permits, p.Weight):
			return
		case p.Process == 0, p.Once, st.lost != nil, st.record.Accepts(p.MaxAge, st.now), st.differs(p.Fingerprint):
			if !passed { // else it would ask in vain: a claim passes nobody over
				st.wake(p)
			}
			return
		}
		l := Lease{
			Token: p.Token, Ends: st.now + min(st.turn, p.TTL), Permits: p.Permits, Weight: p.Weight,
			Fingerprint: p.Fingerprint, Owner: p.Owner,
		}
		st.turns = append(st.turns, Turn{p.Token, p.Process, grantOf(st.grant(l, p, p, p.Hold))})
	}
}

// grant makes a lease, with the next fence. Its token waits at the place own, if that is
// not nil, and is granted at the number of the place seat, if that is not. A hold that is
// not 0 is then the reserved place's.
func (st *State) grant(l Lease, own, seat *Place, hold int64) *Lease {
	if own != nil && own.Kind == waits {
		st.queue.remove(own)
	}
	for _, p := range st.queue.places {
		if seat == nil || p.Seq != seat.Seq {
			continue
		}
		if l.Seq = p.Seq; p.Kind == reserved && hold > 0 {
			p.Hold = hold
		}
	}
	st.fence, st.free = max(st.fence+1, st.now), 0
	l.Fence, l.Attempt, l.Since = st.fence, 1, st.now
	if st.lost != nil {
		l.Attempt, l.Heir = st.lost.Attempt+1, st.lost.Heir
	}
	st.holders = append(st.holders, l)
	return &st.holders[len(st.holders)-1]
}

// grantOf is how a lease is told.
func grantOf(l *Lease) dibs.Answer {
	return dibs.Answer{State: dibs.Granted, Fence: uint64(l.Fence), Attempt: int(l.Attempt)}
}

// wake has the store tell a waiter to ask.
func (st *State) wake(p *Place) {
	st.turns = append(st.turns, Turn{Token: p.Token, Process: p.Process})
}

// wakeAll wakes those waiters, as far as they are loaded.
func (st *State) wakeAll(which func(*Place) bool) {
	for _, p := range st.queue.places {
		if p.Kind == waits && which(p) {
			st.wake(p)
		}
	}
}

// tidy deletes what was saved and is nobody's to be told of any more.
func (st *State) tidy() {
	for fence := range st.saved {
		if is := func(l Lease) bool { return l.Fence == fence || l.Heir == fence }; !slices.ContainsFunc(st.holders, is) && (st.lost == nil || !is(*st.lost)) {
			delete(st.saved, fence)
			st.step(Step{Does: DropProgress, Fence: fence})
		}
	}
}

// row is the key's row as it is to be.
func (st *State) row() Row {
	w := Row{There: true, Fence: st.fence, Free: st.free, Record: st.record}
	w.Busy = !st.queue.empty() || st.lost != nil || len(st.saved) > 0
	if st.queue.empty() {
		w.Free = 0
	}
	for _, l := range st.holders {
		if l.Permits == 1 {
			w.Holder = l
			w.Holder.Fence = 0 // that of the row is its
		} else {
			w.Busy = true
		}
	}
	return w
}
