package model

import (
	"slices"
	"time"

	"github.com/dibs-go/dibs/store"
)

// state is what the backend knows of one key.
type state struct {
	b *Backend

	leases    []*lease
	rows      []*row     // in the order of their numbers; a reserved place before its waiters
	abandoned *abandoned // the abandoned leases in a row
	record    *record
	free      time.Time // since when a reserved place keeps others from the key; zero if none does
}

// lease is a token's right to the key.
type lease struct {
	claim     store.Claim
	number    int // at which it was granted, if that is a reserved place's; else 0
	fence     uint64
	attempt   int
	inherited []byte // saved under the abandoned leases before
	progress  []byte // saved by this holder
	since     time.Time
	ends      time.Time
}

// row is a place: a reserved one, or a waiter's.
type row struct {
	claim  store.Claim
	number int
	ends   time.Time
	asked  time.Time // for the reserved place
	store  *Store    // which wakes the waiter
	kept   bool      // it only keeps the number of a waiter that was granted or passed over
}

func (r *row) reserved() bool { return r.claim.Mode == store.Reserve }

// abandoned is what is known of the leases in a row that were abandoned.
type abandoned struct {
	last     *lease
	count    int
	progress []byte // saved last
}

// record is what a finished holder left behind.
type record struct {
	token   store.Token
	asked   store.Fingerprint
	data    []byte
	written time.Time
	ends    time.Time
}

// advance notices what has expired. What expires at an instant has ended at that instant.
func (s *state) advance(now time.Time) {
	over := slices.DeleteFunc(slices.Clone(s.leases), func(l *lease) bool { return l.ends.After(now) })
	if s.b.bug != AbandonedUnsorted {
		slices.SortFunc(over, func(l, m *lease) int { return l.ends.Compare(m.ends) })
	}
	for _, l := range over {
		s.abandon(l)
	}
	before := len(s.rows)
	s.rows = slices.DeleteFunc(s.rows, func(r *row) bool { return !r.ends.After(now) })
	if s.front(now); len(s.rows) == 0 && s.b.bug != GraceOutlastsQueue {
		s.free = time.Time{}
	}
	if s.record != nil && !s.record.ends.After(now) {
		s.record = nil
	}
	if a := s.abandoned; a != nil && (s.b.bug == AbandonedForgotten && now.Sub(a.last.ends) > time.Hour ||
		s.b.bug == UnknownForgotten && s.unknown() && now.Sub(a.last.ends) > 7*24*time.Hour) {
		s.abandoned = nil
	}
	if len(over) > 0 || len(s.rows) < before {
		s.serve(now)
	}
}

// abandon ends a lease that its holder did not settle.
func (s *state) abandon(l *lease) {
	s.remove(l)
	a := &abandoned{last: l, count: 1, progress: l.progress}
	if was := s.abandoned; was != nil {
		a.count += was.count
		if l.progress == nil && s.b.bug != ProgressStops {
			a.progress = was.progress
		}
	}
	if s.b.bug == UndoForgetsAbandoned {
		a.count = max(a.count, l.attempt)
	}
	s.abandoned = a
	if s.b.bug == AbandonEndsPlace {
		s.deleteNumber(l.number)
	}
}

func (s *state) unknown() bool { return s.abandoned != nil && s.abandoned.last.claim.AtMostOnce }

// lease returns the token's lease, or nil.
func (s *state) lease(t store.Token) *lease {
	for _, l := range s.leases {
		if l.claim.Token == t {
			return l
		}
	}
	return nil
}

// row returns the token's place, or nil.
func (s *state) row(t store.Token) *row {
	for _, r := range s.rows {
		if r.claim.Token == t {
			return r
		}
	}
	return nil
}

// leave gives the token's place up, and reports whether there was one.
func (s *state) leave(t store.Token) bool {
	r := s.row(t)
	if r == nil {
		return false
	}
	s.drop(r)
	return true
}

func (s *state) remove(l *lease) {
	s.leases = slices.DeleteFunc(s.leases, func(m *lease) bool { return m == l })
}

// insert puts a place behind the others with its number.
func (s *state) insert(r *row) {
	i := slices.IndexFunc(s.rows, func(q *row) bool { return q.number > r.number })
	if i < 0 {
		i = len(s.rows)
	}
	s.rows = slices.Insert(s.rows, i, r)
}

func (s *state) drop(r *row) {
	s.rows = slices.DeleteFunc(s.rows, func(q *row) bool { return q == r })
}

// deleteNumber deletes all places at a number. The waiters among them are woken.
func (s *state) deleteNumber(number int) {
	if number == 0 {
		return
	}
	s.rows = slices.DeleteFunc(s.rows, func(r *row) bool {
		if r.number != number {
			return false
		}
		if !r.reserved() && !r.kept && s.b.bug != DeletedSleepOn {
			r.store.wake(r.claim.Token, store.Answer{})
		}
		return true
	})
}

// number returns the number of a claim, or 0 if it has none.
func (s *state) number(c store.Claim) int {
	own := s.row(c.Token)
	if own != nil && s.b.bug != FromBeforeOwn {
		return own.number
	}
	if r := s.row(c.From); r != nil && r.reserved() && s.b.bug != FromIsNothing {
		return r.number
	}
	if own != nil {
		return own.number
	}
	return 0
}

// leased reports whether there is a lease that was granted at the number.
func (s *state) leased(number int) bool {
	return number != 0 && slices.ContainsFunc(s.leases, func(l *lease) bool { return l.number == number })
}

// attended reports whether a waiter is at the number.
func (s *state) attended(number int) bool {
	return slices.ContainsFunc(s.rows, func(r *row) bool { return r.number == number && !r.reserved() && !r.kept })
}

// inTheWay reports whether a place keeps the places behind it from the key.
func (s *state) inTheWay(r *row) bool {
	if r.kept && s.b.bug != KeptBlocks || s.leased(r.number) && s.b.bug != LeasedPlaceBlocks {
		return false
	}
	return !r.reserved() || !s.attended(r.number) || s.b.bug == PlaceHidesWaiter
}

// front returns the place in front, or nil. It deletes a reserved place whose Grace
// is over.
func (s *state) front(now time.Time) *row {
	for i := 0; i < len(s.rows); {
		r := s.rows[i]
		switch {
		case !s.inTheWay(r):
			i++
		case r.reserved() && s.graceOver(r, now):
			s.rows = slices.Delete(s.rows, i, i+1)
			if s.b.bug == GraceForEach {
				s.free = now
			}
		default:
			return r
		}
	}
	return nil
}

// graceOver reports whether a reserved place has kept others from the key for its Grace.
func (s *state) graceOver(r *row, now time.Time) bool {
	grace, since := r.claim.Grace, s.free
	if s.b.bug == GraceRounded {
		grace = grace.Truncate(time.Millisecond)
	}
	if grace == 0 || since.IsZero() {
		return false
	}
	if r.asked.After(since) && s.b.bug != GraceNotSetAnew {
		since = r.asked
	}
	return !since.Add(grace).After(now)
}

// ahead returns how many numbers block one; or all, if it is 0.
func (s *state) ahead(number int) int {
	n, last := 0, 0
	for _, r := range s.rows {
		if number != 0 && r.number >= number {
			break
		}
		if r.number != last && s.inTheWay(r) {
			n, last = n+1, r.number
		}
	}
	return n
}

// room reports whether the leases leave room for the claim.
func (s *state) room(c store.Claim) bool {
	sum := c.Weight
	for _, l := range s.leases {
		if l.claim.Permits != c.Permits && s.b.bug != PermitsMix {
			return false
		}
		if s.b.bug == WeightIgnored {
			l = &lease{claim: store.Claim{Weight: 1}}
		}
		sum += l.claim.Weight
	}
	if s.b.bug == WeightIgnored {
		sum += 1 - c.Weight
	}
	return sum <= c.Permits
}

// serve pushes a grant to the waiter in front, or wakes it, if the leases leave room for it.
// After a push it serves the next waiter.
func (s *state) serve(now time.Time) {
	for !s.unknown() {
		w := s.next(now)
		if w == nil {
			return
		}
		keeps := w.store.relays && s.b.bug != RelayedIsForgotten && s.b.bug != Wakes
		if !s.pushes(w, now) {
			if keeps && !w.kept && len(w.store.listeners) == 0 && s.b.bug != RelayedIsAwaited {
				w.kept = true
				continue
			}
			w.store.wake(w.claim.Token, store.Answer{})
			return
		}
		c := w.claim
		if s.b.bug == PushSetsNoGrace {
			c.Grace = 0
		}
		l := s.grant(c, w.number, now)
		if keeps {
			w.kept, l.number = true, w.number
			s.insert(w)
		}
		l.ends = now.Add(min(s.b.turn, w.claim.TTL))
		switch s.b.bug {
		case PushedForEver:
			l.ends = now.Add(w.claim.TTL)
		case PushedBriefly:
			l.ends = now.Add(s.b.turn / 2)
		case PushedPastItsTTL:
			l.ends = now.Add(s.b.turn)
		}
		a := l.answer()
		if s.b.bug == PushedAfterAbandoned {
			a.Attempt, a.Progress = 1, nil
		}
		w.store.wake(w.claim.Token, a)
	}
}

// next returns the waiter to be served, or nil.
func (s *state) next(now time.Time) *row {
	s.front(now)
	for _, r := range s.rows {
		switch {
		case !s.inTheWay(r):
		case r.reserved():
			return nil
		case len(r.store.listeners) == 0 && s.b.bug == UnreachableLeaves:
			s.drop(r)
			return s.next(now)
		case len(r.store.listeners) == 0 && s.b.bug != Wakes && (!r.store.relays || s.b.bug == RelayedIsSkipped):
			// its process does not listen
		case s.room(r.claim):
			return r
		case s.b.bug != HeavyStarves:
			return nil
		}
	}
	return nil
}

// pushes reports whether a waiter's grant is pushed. A waiter that needs more than the grant,
// or may get another answer, is woken to ask.
func (s *state) pushes(w *row, now time.Time) bool {
	switch {
	case s.b.bug == Wakes:
		return false
	case w.claim.AtMostOnce:
		return s.b.bug == AtMostOncePushed
	case s.abandoned != nil:
		return s.b.bug == PushedAfterAbandoned
	case s.accepts(w.claim, now):
		return s.b.bug == AnsweredPushed
	}
	return !s.differs(w.claim, now) || s.b.bug == MismatchPushed
}

// grant grants the key to a claim with that number.
func (s *state) grant(c store.Claim, number int, now time.Time) *lease {
	s.leave(c.Token)
	l := &lease{claim: c, attempt: 1, fence: s.b.nextFence(now), since: now, ends: now.Add(c.TTL)}
	if a := s.abandoned; a != nil {
		l.attempt, l.inherited = a.count+1, a.progress
		if s.b.bug == UndoForgetsAbandoned {
			s.abandoned = nil
		}
	}
	for _, r := range s.rows {
		if number != 0 && r.number == number {
			l.number = number
		}
		if r.number == number && r.reserved() && (c.Grace > 0 || s.b.bug == ClaimClearsGrace) {
			r.claim.Grace = c.Grace
		}
	}
	if s.b.bug != GraceOutlastsGrant {
		s.free = time.Time{}
	}
	s.leases = append(s.leases, l)
	return l
}

func (l *lease) answer() store.Answer {
	return store.Answer{State: store.Granted, Fence: l.fence, Attempt: l.attempt, Progress: l.inherited}
}
