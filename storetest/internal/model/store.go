package model

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
)

// Store is one process's way to a Backend.
type Store struct {
	b     *Backend
	broke atomic.Bool

	listeners map[int]listener // by the number that it was given
	listened  int
}

var (
	_ dibs.Store         = (*Store)(nil)
	_ dibs.Inspector     = (*Store)(nil)
	_ dibs.GrantNotifier = (*Store)(nil)
	_ dibs.Pruner        = (*Store)(nil)
)

// Break makes every later call of Claim fail as a whole, as when the backend
// has gone.
func (s *Store) Break() { s.broke.Store(true) }

// Claim implements dibs.Store.
func (s *Store) Claim(ctx context.Context, claims []dibs.Claim, answers []dibs.Answer) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.broke.Load() {
		return errors.New("model: broken")
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	seen := map[dibs.Key]int{}
	for i, c := range claims {
		if err := c.Validate(); err != nil {
			answers[i] = dibs.Answer{Err: err}
			continue
		}
		if j, ok := seen[c.Key]; ok && s.b.bug == BatchMerges {
			answers[i] = answers[j]
			continue
		}
		seen[c.Key] = i
		a := s.claim(c)
		switch a.State {
		case dibs.Granted:
			s.b.said = max(s.b.said, a.Fence)
		case dibs.Held:
			a.Fence = s.b.highest(time.Now())
		}
		answers[i] = a
	}
	return nil
}

func (s *Store) claim(c dibs.Claim) dibs.Answer {
	now := time.Now()
	st := s.b.state(c.Key, now)
	if c.Mode == dibs.Look {
		c.Mode = dibs.Try
		last := s.b.last
		try := st.clone()
		try.tried = true
		a := s.ask(try, c, now)
		s.b.last = last
		if a.State == dibs.Held && s.b.bug == HoldStartsAtLook {
			st.press(a.Ahead, now)
		}
		if a.State == dibs.Granted {
			a = dibs.Answer{State: dibs.Free}
		}
		return a
	}
	return s.ask(st, c, now)
}

// ask answers a claim that is valid.
func (s *Store) ask(st *state, c dibs.Claim, now time.Time) dibs.Answer {
	if len(st.holders) == 0 && len(st.queue) == 0 {
		st.permits = 0 // the agreement ends with those who made it
	}
	if l := st.holder(c.Token); l != nil && l.offered && s.b.bug == OwnTurnMismatch && l.asked.Differs(c.Fingerprint) {
		return dibs.Answer{State: dibs.Mismatch}
	}
	if l := st.holder(c.Token); l != nil {
		return s.again(st, l, c, now)
	}
	if st.permits != 0 && st.permits != c.Permits && s.b.bug != PermitsUnagreed {
		return dibs.Answer{State: dibs.PermitsDiffer, Permits: st.permits}
	}
	if st.differs(c) {
		st.answered(c)
		if s.b.bug == MismatchJoins && c.Mode == dibs.Queue {
			st.queue = append(st.queue, s.newPlace(st, c, now))
		}
		st.handOver(now)
		return dibs.Answer{State: dibs.Mismatch}
	}
	if r := st.record; r != nil && c.MaxAge > 0 && (now.Sub(r.written) <= c.MaxAge || s.b.bug == MaxAgeIgnored) {
		st.answered(c)
		st.handOver(now)
		return dibs.Answer{State: dibs.Done, Record: dibs.Record{
			Data: r.data, Age: now.Sub(r.written), Left: r.ends.Sub(now),
		}}
	}
	if st.unknown {
		return dibs.Answer{State: dibs.Unknown, ID: st.gone.token.ID()}
	}
	return s.wait(st, c, now)
}

// again answers a token that holds the key already, perhaps without knowing.
func (s *Store) again(st *state, l *lease, c dibs.Claim, now time.Time) dibs.Answer {
	if l.offered || s.b.bug != ClaimKeepsTTL {
		l.ends = st.until(now.Add(c.TTL))
	}
	l.asked, l.owner, l.atMostOnce = c.Fingerprint, c.Owner, c.AtMostOnce
	if l.offered {
		l.offered = false
		st.takeUp(l)
	}
	return granted(l)
}

func granted(l *lease) dibs.Answer {
	return dibs.Answer{State: dibs.Granted, Fence: l.fence, Attempt: l.attempt, Progress: l.inherited}
}

// wait grants the key to the token whose turn it is, and otherwise gives or
// keeps it its place.
func (s *Store) wait(st *state, c dibs.Claim, now time.Time) dibs.Answer {
	for _, t := range []dibs.Token{c.Redeems, c.Token} {
		if l := st.taker(t); l != nil {
			return s.waitForTaken(st, l, c, now)
		}
		if i := st.place(t); t == c.Redeems && i >= 0 && st.queue[i].reserved() {
			return s.redeem(st, i, c, now)
		}
	}
	i := st.place(c.Token)
	ahead := i
	if i < 0 {
		ahead = len(st.queue)
	}
	if c.Mode != dibs.Reserve && s.turn(st, ahead, c) {
		st.leave(c.Token)
		return s.takes(st, nil, c, now)
	}

	st.permits = c.Permits
	switch {
	case c.Mode == dibs.Try && (i < 0 || c.Place == 0 || !c.Redeems.IsZero()):
	case c.Mode == dibs.Try:
		kept := *st.queue[i]
		kept.claim.Place = c.Place
		kept.ends = st.until(now.Add(c.Place))
		st.queue[i] = st.prolonged(st.queue[i], kept, c)
	case i < 0:
		st.queue = append(st.queue, s.newPlace(st, c, now))
		i = ahead
	default:
		kept := *st.queue[i]
		kept.claim, kept.store = c, s
		kept.ends = st.until(now.Add(c.Place))
		st.queue[i] = st.prolonged(st.queue[i], kept, c)
	}
	return st.held(c, ahead, i >= 0, now)
}

// newPlace returns a place behind all others.
func (s *Store) newPlace(st *state, c dibs.Claim, now time.Time) *place {
	s.b.seq++
	return &place{claim: c, seq: s.b.seq, store: s, ends: st.until(now.Add(c.Place))}
}

// turn reports whether it is the turn of who has that many places before it.
func (s *Store) turn(st *state, ahead int, c dibs.Claim) bool {
	return len(st.holders) < c.Permits && ahead == 0
}

// takes grants the key to a token that asks, from a reserved place if it has
// one.
func (s *Store) takes(st *state, from *place, c dibs.Claim, now time.Time) dibs.Answer {
	l := st.grant(c, now)
	l.from = from
	st.takeUp(l)
	answer := granted(l)
	if s.b.bug != RedeemStrands {
		st.handOver(now) // to those whom a reserved place held back
	}
	return answer
}

// redeem answers a claim from a reserved place, the one with that index.
func (s *Store) redeem(st *state, i int, c dibs.Claim, now time.Time) dibs.Answer {
	p := st.queue[i]
	if s.turn(st, i, c) {
		st.drop(i)
		st.leave(c.Token)
		st.untake(c.Token)
		return s.takes(st, p.redeemedBy(c, s.b.bug), c, now)
	}
	if s.b.bug == RedeemersHoldTooEarly {
		p = p.redeemedBy(c, s.b.bug)
	}
	st.queue[i] = p.with(s)
	return st.held(c, i, true, now)
}

// waitForTaken answers a claim from a place, or of a place's own token, that
// another's lease has taken.
func (s *Store) waitForTaken(st *state, l *lease, c dibs.Claim, now time.Time) dibs.Answer {
	p := *l.from.with(s)
	if c.Token == p.claim.Token && c.Place > 0 && c.Redeems.IsZero() {
		p.claim.Place = c.Place
		if c.Mode == dibs.Reserve {
			p.claim.Hold = c.Hold
		}
	}
	p.sought = true
	l.from = &p
	ahead := 0
	for ahead < len(st.queue) && st.queue[ahead].seq < p.seq {
		ahead++
	}
	if s.b.bug == HoldStartsAtTaken {
		st.press(max(ahead, 1), now)
	}
	left := st.left(ahead, now)
	if s.b.bug == LeftOfTheTaker {
		left = l.ends.Sub(now)
	}
	return dibs.Answer{
		State: dibs.Held, Left: left, Ahead: ahead, Queued: true,
		Idle: s.b.bug == IdleForTheTaken && st.idle(max(ahead, 1)),
	}
}

// held answers a claim that is kept from the key.
func (st *state) held(c dibs.Claim, ahead int, queued bool, now time.Time) dibs.Answer {
	if !st.tried {
		st.refused(c, ahead, now)
	}
	return dibs.Answer{State: dibs.Held, Left: st.left(ahead, now), Ahead: ahead, Queued: queued, Idle: st.idle(ahead)}
}

// idle reports whether it is a reserved place that nobody comes for which keeps the
// key from one with so many places ahead of it.
func (st *state) idle(ahead int) bool {
	free := len(st.holders) < st.permits
	switch st.b.bug {
	case IdleWhileHeld:
		free = true
	case IdleNeedsNoHolder:
		free = len(st.holders) == 0
	}
	return free && ahead > 0 && len(st.queue) > 0 && st.queue[0].reserved()
}

// left returns the time until the first lease or place in the way of the one
// after the first n runs out.
func (st *state) left(n int, now time.Time) time.Duration {
	var left time.Duration
	for _, l := range st.holders {
		if d := l.ends.Sub(now); left == 0 || d < left {
			left = d
		}
	}
	for _, p := range st.queue[:min(n, len(st.queue))] {
		if d := p.ends.Sub(now); left == 0 || d < left {
			left = d
		}
	}
	if left == 0 && n < len(st.queue) {
		left = st.queue[n].ends.Sub(now) // a reserved place that nothing is in the way of
	}
	return left
}

// differs reports whether the claim asks something else than whoever holds,
// abandoned or finished the key last.
func (st *state) differs(c dibs.Claim) bool {
	for _, l := range st.holders {
		if l.asked.Differs(c.Fingerprint) {
			return true
		}
	}
	if st.gone != nil && st.gone.asked.Differs(c.Fingerprint) {
		return true
	}
	return st.record != nil && c.MaxAge > 0 && st.record.asked.Differs(c.Fingerprint)
}

// Renew implements dibs.Store.
func (s *Store) Renew(ctx context.Context, renewals []dibs.Renewal, errs []error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	for i, r := range renewals {
		if errs[i] = r.Validate(); errs[i] == nil {
			errs[i] = s.renew(r)
		}
	}
	return nil
}

func (s *Store) renew(r dibs.Renewal) error {
	now := time.Now()
	st := s.b.state(r.Key, now)
	l := st.holder(r.Token)
	if l == nil || l.offered {
		return dibs.ErrLost
	}
	l.ends = st.until(now.Add(r.TTL))
	if r.Progress != nil {
		l.progress = s.b.copy(r.Progress)
	}
	return nil
}

// copy returns the bytes for the backend to keep.
func (b *Backend) copy(data []byte) []byte {
	if b.bug == KeepsSlices {
		return data
	}
	return bytes.Clone(data)
}
