package model

import (
	"slices"
	"time"

	"github.com/dibs-go/dibs"
)

// state is what the backend knows of one key.
type state struct {
	b *Backend

	permits int       // what holders and places agreed on
	holders []lease   // also those on offer
	queue   []*place  // in the order of seq; a place is replaced, never changed
	quiet   time.Time // nothing ends before, as a short cut
	tried   bool      // this is a clone, on which a Look tries what it would find

	abandoned int    // leases in a row that ended without being settled
	gone      *lease // the last of them, until the next one is taken up
	unknown   bool   // gone was AtMostOnce

	record *record
}

// lease is a token's right to the key.
type lease struct {
	token      dibs.Token
	asked      dibs.Fingerprint
	owner      dibs.Owner
	atMostOnce bool
	fence      uint64
	attempt    int
	since      time.Time
	ends       time.Time
	progress   []byte // saved by this holder
	inherited  []byte // saved by the one that abandoned the key before
	offered    bool   // to a waiter that has yet to confirm
	from       *place // the reserved place that it has taken
	told       *lease // what was abandoned before, which it took up
}

// place is a token's place in the queue, or a lease's that has taken it.
type place struct {
	claim  dibs.Claim
	seq    int
	ends   time.Time
	store  *Store   // whom to wake
	others []*Store // who claimed from it, to be woken too
	sought bool     // some did while it was taken

	pressed bool // its Hold is being counted, and ends is no later than that
}

func (p *place) reserved() bool { return p.claim.Mode == dibs.Reserve }

// wake tells all who wait at the place.
func (p *place) wake() {
	p.store.wake(p.claim.Token)
	for _, s := range p.others {
		s.wake(p.claim.Token)
	}
}

// with returns the place with one more to wake.
func (p *place) with(s *Store) *place {
	if s == p.store || slices.Contains(p.others, s) {
		return p
	}
	more := *p
	more.others = append(slices.Clone(p.others), s)
	return &more
}

// record is what a finished holder left behind.
type record struct {
	token   dibs.Token
	asked   dibs.Fingerprint
	data    []byte
	written time.Time
	ends    time.Time
}

// advance lets everything happen that happened by itself until now, in the
// order in which it did. What ends at an instant is dead at that instant.
func (s *state) advance(now time.Time) {
	for !now.Before(s.quiet) {
		i, at := s.firstEnd()
		if i < 0 || at.After(now) {
			s.quiet = at
			break
		}
		if i < len(s.holders) {
			s.runOut(i, at)
		} else {
			i -= len(s.holders)
			s.drop(i)
		}
		s.serve(at, false)
	}
	switch {
	case s.gone == nil:
	case s.b.bug == AbandonedForgotten && now.Sub(s.gone.ends) > time.Hour,
		s.b.bug == UnknownForgotten && s.unknown && now.Sub(s.gone.ends) > 7*24*time.Hour:
		s.clean()
	}
	if s.record != nil && !s.record.ends.After(now) {
		s.record = nil
	}
}

// firstEnd returns which lease (or, counted on from there, which place) ends
// first, and when; -1 when there is none. Of two that end at the same instant
// the place goes first: it must not be granted what ends with it.
func (s *state) firstEnd() (int, time.Time) {
	first, at := -1, time.Time{}
	sooner := func(i int, ends time.Time) {
		if first < 0 || ends.Before(at) {
			first, at = i, ends
		}
	}
	for i, p := range s.queue {
		sooner(len(s.holders)+i, p.ends)
	}
	for i, l := range s.holders {
		sooner(i, l.ends)
	}
	return first, at
}

// until notes that something will end at a time, and returns that.
func (s *state) until(ends time.Time) time.Time {
	if ends.Before(s.quiet) {
		s.quiet = ends
	}
	return ends
}

// runOut ends a lease that its holder did not settle.
func (s *state) runOut(i int, at time.Time) {
	l := s.holders[i]
	s.holders = slices.Delete(s.holders, i, i+1)
	s.standAgain(l.from, at)
	if l.offered {
		return // Its turn is over. Nobody did anything, so nothing was abandoned.
	}
	s.abandoned++
	l.ends = at
	if l.progress == nil && s.b.bug != ProgressStops {
		l.progress = l.inherited // it saved nothing, and passes on what it was given
	}
	s.gone = &l
	s.unknown = l.atMostOnce
}

// undo ends a lease as if it had not been granted.
func (s *state) undo(i int, now time.Time) {
	l := s.holders[i]
	s.holders = slices.Delete(s.holders, i, i+1)
	s.standAgain(l.from, now)
	if s.gone == nil && s.abandoned > 0 && s.b.bug != UndoForgetsProgress {
		// Nobody came to a good end meanwhile, nor to a bad one.
		s.gone = l.told
	}
}

// standAgain puts a place that a lease had taken back where it was.
func (s *state) standAgain(p *place, now time.Time) {
	if p == nil {
		return
	}
	again := *p
	again.pressed = p.pressed && s.b.bug == HoldOnceTaken
	again.ends = s.until(now.Add(p.claim.Place))
	if s.b.bug == HoldOutlastsTheLease && p.pressed {
		again.ends = s.until(p.ends)
	}
	i := slices.IndexFunc(s.queue, func(q *place) bool { return q.seq > p.seq })
	if i < 0 {
		i = len(s.queue)
	}
	s.queue = slices.Insert(s.queue, i, &again)
}

// taker returns the lease that has taken the token's place.
func (s *state) taker(t dibs.Token) *lease {
	for i := range s.holders {
		if p := s.holders[i].from; p != nil && p.claim.Token == t {
			return &s.holders[i]
		}
	}
	return nil
}

// untake gives up the token's place that a lease has taken, and reports whether
// there was one.
func (s *state) untake(t dibs.Token) bool {
	l := s.taker(t)
	if l == nil {
		return false
	}
	l.giveUpPlace()
	return true
}

// giveUpPlace ends the place that the lease has taken, if any. Who waits for it
// is told.
func (l *lease) giveUpPlace() {
	if l.from != nil && l.from.sought {
		l.from.wake()
	}
	l.from = nil
}

// clean forgets what was abandoned, because a holder came to a good end.
func (s *state) clean() {
	s.abandoned, s.gone, s.unknown = 0, nil, false
}

// handOver grants the key to the places at the head of the queue.
func (s *state) handOver(now time.Time) {
	if !s.tried {
		s.serve(now, true)
	}
}

// serve grants the key to the places at the head of the queue, as far as there
// are permits. A reserved place stops it. What is worked out to have happened before
// this moment is offered and not told: it would be told late.
func (s *state) serve(now time.Time, live bool) {
	for !s.unknown && len(s.queue) > 0 && len(s.holders) < s.permits {
		next := s.queue[0]
		if next.reserved() && s.b.bug != ReservedTold {
			next.wake() // once would do
			return
		}
		s.drop(0)
		if s.gone != nil && s.gone.asked.Differs(next.claim.Fingerprint) {
			next.store.wake(next.claim.Token) // to be told of the mismatch
			continue
		}
		tells := live && s.tells(next)
		l := s.grant(next.claim, now)
		if tells {
			s.tell(l, next, now)
			continue
		}
		l.offered = true
		l.ends = s.until(now.Add(s.b.turn))
		next.store.wake(l.token)
	}
}

// grant adds a holder.
func (s *state) grant(c dibs.Claim, now time.Time) *lease {
	l := lease{
		token: c.Token, asked: c.Fingerprint, owner: c.Owner, atMostOnce: c.AtMostOnce,
		fence: s.b.nextFence(now), attempt: s.abandoned + 1,
		since: now, ends: s.until(now.Add(c.TTL)),
	}
	if s.gone != nil {
		l.inherited = s.gone.progress
	}
	s.permits = c.Permits
	s.holders = append(s.holders, l)
	return &s.holders[len(s.holders)-1]
}

// takeUp gives to a holder that knows of its grant what was abandoned before.
func (s *state) takeUp(l *lease) { l.told, s.gone = s.gone, nil }

// holder returns the token's lease, also one on offer.
func (s *state) holder(t dibs.Token) *lease {
	for i := range s.holders {
		if s.holders[i].token == t {
			return &s.holders[i]
		}
	}
	return nil
}

// place returns the token's place in the queue, counted from 0, or -1.
func (s *state) place(t dibs.Token) int {
	return slices.IndexFunc(s.queue, func(p *place) bool { return p.claim.Token == t })
}

// drop takes one place out of the queue.
func (s *state) drop(i int) {
	if i == 0 {
		s.queue = s.queue[1:] // without moving ten thousand others
		return
	}
	s.queue = slices.Delete(s.queue, i, i+1)
}

// answered gives up the places of a claim that has its answer: its own, and the
// one it is made from.
func (s *state) answered(c dibs.Claim) {
	s.leave(c.Token)
	if i := s.place(c.Redeems); i >= 0 && s.queue[i].reserved() {
		s.drop(i)
	}
}

// leave takes the token out of the queue and reports whether it was there.
func (s *state) leave(t dibs.Token) bool {
	i := s.place(t)
	if i < 0 {
		return false
	}
	s.drop(i)
	return true
}

// clone returns a copy to try things on.
func (s *state) clone() *state {
	c := *s
	c.holders = slices.Clone(s.holders)
	c.queue = slices.Clone(s.queue)
	return &c
}
