package mysqlstore

import (
	"math"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
)

// lease is a lease of a key, or the last one that was abandoned: its attempt is how many
// were then, in a row. Times are the server's, in microseconds.
type lease struct {
	token           dibs.Token
	abandoned       bool
	fence, attempt  int64
	since, ends     int64 // ends is 0 when it was settled in a transaction of the application's
	once            bool
	seq             int64 // of the reserved place at which it was granted; 0: none
	heir            int64 // of what was saved under that fence; 0: of nothing
	permits, weight int64
	fingerprint     dibs.Fingerprint
	owner           string
}

// record is what a key's last holder left behind, but for its data.
type record struct {
	token         dibs.Token
	written, ends int64 // ends is 0 when there is none
	fingerprint   dibs.Fingerprint
}

// row is a key's row. The lease of a key with one permit is in it, and of keys with
// more in rows of their own.
type row struct {
	there  bool // it is in the table
	fence  int64
	busy   bool
	free   int64
	holder lease
	record record
}

// state is a key that is being worked on. Whoever does so has its row locked, or
// only looks: it is loaded, changed in memory, and what is different then is
// written.
type state struct {
	k     string
	looks bool  // nothing is written
	now   int64 // one moment for all that is done
	turn  int64 // how long a lease lasts that is told
	was   row
	short bool // more has to be loaded of the queue to know

	fence   int64
	free    int64 // since when a reserved place keeps others from room that there is
	holders []lease
	lost    *lease // the last one that was abandoned
	record  record
	queue   queue

	saved  map[int64]bool     // the fences of leases under which something was saved
	others map[holderID]lease // leases in rows of their own, as they are there
	turns  []turn             // who has to be told something
	writes writes
}

// holderID is what is unique of a lease in a row of its own.
type holderID struct {
	token     dibs.Token
	abandoned bool
}

// turn is what a waiter has to be told.
type turn struct {
	token  dibs.Token
	answer dibs.Answer // its State is zero when it should ask
}

// memory is how long an abandoned lease is remembered.
const memory = int64(dibs.AbandonedMemory / time.Microsecond)

// micros counts microseconds, rounded up.
func micros(d time.Duration) int64 {
	n := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		n++
	}
	return n
}

// duration is so many microseconds.
func duration(us int64) time.Duration {
	if us > math.MaxInt64/1000 {
		return math.MaxInt64
	}
	return time.Duration(us) * time.Microsecond
}

// unknown reports whether nobody may be granted before somebody resolves the key.
func (st *state) unknown() bool { return st.lost != nil && st.lost.once }

// holder returns the lease of a token, or nil.
func (st *state) holder(t dibs.Token) *lease {
	if i := slices.IndexFunc(st.holders, func(l lease) bool { return l.token == t }); i >= 0 {
		return &st.holders[i]
	}
	return nil
}

// leased reports whether a lease was granted at that number: its places are in nobody's way.
func (st *state) leased(seq int64) bool {
	return slices.ContainsFunc(st.holders, func(l lease) bool { return l.seq == seq })
}

// room reports whether the leases leave room for a claim.
func (st *state) room(permits, weight int64) bool {
	for _, l := range st.holders {
		if weight += l.weight; l.permits != permits {
			return false
		}
	}
	return weight <= permits
}

// differs reports whether a holder, or who abandoned the key last, does something else.
func (st *state) differs(f dibs.Fingerprint) bool {
	return st.lost != nil && st.lost.fingerprint.Differs(f) ||
		slices.ContainsFunc(st.holders, func(l lease) bool { return l.fingerprint.Differs(f) })
}

// accepts reports whether the record answers a claim with that MaxAge.
func (r *record) accepts(maxAge, now int64) bool {
	return maxAge > 0 && r.ends > now && r.written >= now-maxAge
}

// of reports whether it is there, and of that token.
func (r *record) of(t dibs.Token, now int64) bool { return r.token == t && r.ends > now }

// advance lets time pass: what is over is dead, and what that frees is handed over. The
// leases were loaded in the order in which they end.
func (st *state) advance() {
	for i := 0; i < len(st.holders); {
		l := st.holders[i]
		if l.ends > st.now {
			i++
			continue
		}
		st.holders = slices.Delete(st.holders, i, i+1)
		if l.ends > 0 {
			st.abandon(l, l.ends)
			continue
		}
		if st.clean(l); st.record.of(l.token, st.now) {
			st.wakeAll(func(p *place) bool { return p.maxAge > 0 })
		}
	}
	if st.lost != nil && !st.lost.once && st.lost.ends+memory <= st.now {
		st.lost = nil
	}
	st.serve()
}

// serve hands the key over to those in front, as far as there is room: it grants it where
// the grant is all that there is to tell, and otherwise has the waiter ask. A reserved
// place that nobody waits at stops it.
func (st *state) serve() {
	for !st.looks && !st.unknown() {
		p := st.front()
		switch {
		case p == nil, p.kind == reserved, !st.room(p.permits, p.weight):
			return
		case !p.tells, st.lost != nil, st.record.accepts(p.maxAge, st.now), st.differs(p.fingerprint):
			st.wake(p.token)
			return
		}
		l := lease{
			token: p.token, ends: st.now + min(st.turn, p.ttl), permits: p.permits, weight: p.weight,
			fingerprint: p.fingerprint, owner: p.owner,
		}
		st.turns = append(st.turns, turn{p.token, grantOf(st.grant(l, p, p, p.hold))})
	}
}

// grant makes a lease, with the next fence. Its token waits at the place own, if that is
// not nil, and is granted at the number of the place seat, if that is not. A hold that is
// not 0 is then the reserved place's.
func (st *state) grant(l lease, own, seat *place, hold int64) *lease {
	if own != nil && own.kind == waits {
		st.queue.remove(own)
	}
	for _, p := range st.queue.places {
		if seat == nil || p.seq != seat.seq {
			continue
		}
		if l.seq = p.seq; p.kind == reserved && hold > 0 {
			p.hold = hold
		}
	}
	st.fence, st.free = max(st.fence+1, st.now), 0
	l.fence, l.attempt, l.since = st.fence, 1, st.now
	if st.lost != nil {
		l.attempt, l.heir = st.lost.attempt+1, st.lost.heir
	}
	st.holders = append(st.holders, l)
	return &st.holders[len(st.holders)-1]
}

// grantOf is how a lease is told.
func grantOf(l *lease) dibs.Answer {
	return dibs.Answer{State: dibs.Granted, Fence: uint64(l.fence), Attempt: int(l.attempt)}
}

// wake has those told who wait by that token that they should ask.
func (st *state) wake(t dibs.Token) { st.turns = append(st.turns, turn{token: t}) }

// wakeAll wakes those waiters, as far as they are loaded. The others find out by a look.
func (st *state) wakeAll(which func(*place) bool) {
	for _, p := range st.queue.places {
		if p.kind == waits && which(p) {
			st.wake(p.token)
		}
	}
}

// tidy deletes what was saved and is nobody's to be told of any more.
func (st *state) tidy() {
	for fence := range st.saved {
		if is := func(l lease) bool { return l.fence == fence || l.heir == fence }; !slices.ContainsFunc(st.holders, is) && (st.lost == nil || !is(*st.lost)) {
			delete(st.saved, fence)
			st.writes.dropProgress(fence)
		}
	}
}

// row is the key's row as it is to be.
func (st *state) row() row {
	r := row{there: true, fence: st.fence, free: st.free, record: st.record}
	r.busy = !st.queue.empty() || st.lost != nil || len(st.saved) > 0
	if st.queue.empty() {
		r.free = 0
	}
	for _, l := range st.holders {
		if l.permits == 1 {
			r.holder = l
			r.holder.fence = 0 // that of the row is its
		} else {
			r.busy = true
		}
	}
	return r
}
