package model

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
)

// Store is one process's way to a Backend.
type Store struct {
	b     *Backend
	skew  time.Duration
	broke atomic.Bool
	wakes map[int]func(dibs.Token)
	named int
}

var (
	_ dibs.Store     = (*Store)(nil)
	_ dibs.Inspector = (*Store)(nil)
	_ dibs.Notifier  = (*Store)(nil)
	_ dibs.Pruner    = (*Store)(nil)
)

// Break makes every later call of Claim fail as a whole, as when the backend
// has gone.
func (s *Store) Break() { s.broke.Store(true) }

// now is the backend's clock.
func (s *Store) now() time.Time {
	if s.b.bug == ClientClock {
		return time.Now().Add(s.skew)
	}
	return time.Now()
}

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
		if err := validateClaim(c); err != nil {
			if s.b.bug == BatchFails {
				return err
			}
			answers[i] = dibs.Answer{Err: err}
			continue
		}
		if j, ok := seen[c.Key]; ok && s.b.bug == BatchMerges {
			answers[i] = answers[j]
			continue
		}
		seen[c.Key] = i
		answers[i] = s.claim(c)
	}
	if s.b.bug == BatchSorted {
		shuffle(claims, answers)
	}
	return nil
}

// shuffle puts the answers in the order of the keys: the bug BatchSorted.
func shuffle(claims []dibs.Claim, answers []dibs.Answer) {
	order := make([]int, len(claims))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return strings.Compare(claims[i].Key.Name, claims[j].Key.Name) })
	was := slices.Clone(answers)
	for i, j := range order {
		answers[i] = was[j]
	}
}

func (s *Store) claim(c dibs.Claim) dibs.Answer {
	now := s.now()
	st := s.b.state(c.Key, now)
	if c.Mode == dibs.Look && s.b.bug != LookJoins {
		c.Mode = dibs.Try
		last := s.b.last
		a := s.ask(st.clone(), c, now)
		s.b.last = last
		if a.State == dibs.Granted {
			a = dibs.Answer{State: dibs.Free}
		}
		return a
	}
	if c.Mode == dibs.Look {
		c.Mode = dibs.Queue
	}
	return s.ask(st, c, now)
}

// ask answers a claim that is valid.
func (s *Store) ask(st *state, c dibs.Claim, now time.Time) dibs.Answer {
	if len(st.holders) == 0 && len(st.queue) == 0 {
		if s.b.bug != AgreementStays {
			st.permits = 0 // the agreement ends with those who made it
		}
	}
	if g := st.gone; g != nil && g.token == c.Token && s.b.bug == DeadLeaseReclaimed && len(st.holders) == 0 {
		st.holders = append(st.holders, *g)
		st.gone, st.unknown, st.abandoned = nil, false, st.abandoned-1
	}
	if l := st.holder(c.Token); l != nil && s.b.bug != ClaimNotIdempotent || l != nil && l.offered {
		return s.again(st, l, c, now)
	}
	if st.permits != 0 && st.permits != c.Permits && s.b.bug != PermitsUnagreed {
		return dibs.Answer{State: dibs.PermitsDiffer, Permits: st.permits}
	}
	if st.differs(c) && s.b.bug != MismatchIgnored {
		if s.b.bug == MismatchHarms {
			st.holders = nil
		}
		st.leave(c.Token)
		if s.b.bug == MismatchJoins && c.Mode == dibs.Queue {
			st.queue = append(st.queue, &place{claim: c, store: s, ends: st.until(now.Add(c.Place))})
		}
		st.handOver(now)
		return dibs.Answer{State: dibs.Mismatch}
	}
	if r := st.record; r != nil && c.MaxAge > 0 && (now.Sub(r.written) <= c.MaxAge || s.b.bug == MaxAgeIgnored) {
		st.leave(c.Token)
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
		l.ends = st.until(now.Add(s.b.lasting(c.TTL)))
	}
	l.asked, l.owner, l.atMostOnce = c.Fingerprint, c.Owner, c.AtMostOnce
	l.offered = false
	st.gone = nil // taken up: it is this holder's to go on from
	return granted(l)
}

func granted(l *lease) dibs.Answer {
	return dibs.Answer{State: dibs.Granted, Fence: l.fence, Attempt: l.attempt, Progress: l.inherited}
}

// wait grants the key to the token whose turn it is, and otherwise gives or
// keeps it its place.
func (s *Store) wait(st *state, c dibs.Claim, now time.Time) dibs.Answer {
	i := st.place(c.Token)
	ahead := i
	if i < 0 {
		ahead = len(st.queue)
	}
	free := len(st.holders) < c.Permits
	if s.b.bug == PermitsOffByOne && c.Permits > 1 {
		free = len(st.holders) <= c.Permits
	}
	mine := ahead == 0
	switch s.b.bug {
	case Barging:
		// The key is whoever's asks while the one it is offered to is away.
		mine = true
		if len(st.holders) == 1 && st.holders[0].offered {
			st.holders, free = nil, true
		}
	case ReservedIgnored:
		mine = !slices.ContainsFunc(st.queue[:ahead], func(p *place) bool { return p.claim.Mode != dibs.Reserve })
	}
	if free && mine && c.Mode != dibs.Reserve {
		st.leave(c.Token)
		answer := granted(st.grant(c, now))
		st.gone = nil
		if s.b.bug != RedeemStrands {
			st.handOver(now) // to those whom a reserved place held back
		}
		return answer
	}

	st.permits = c.Permits
	switch {
	case c.Mode == dibs.Try && (i < 0 || c.Place == 0):
	case c.Mode == dibs.Try:
		kept := *st.queue[i]
		kept.ends = st.until(now.Add(c.Place))
		st.queue[i] = &kept
	case i < 0:
		p := &place{claim: c, store: s, ends: st.until(now.Add(c.Place))}
		if s.b.bug == LastFirst {
			st.queue = slices.Insert(st.queue, 0, p)
		} else {
			st.queue = append(st.queue, p)
		}
		i = ahead
	case s.b.bug == AskingMovesBack && c.Mode == dibs.Queue:
		st.leave(c.Token)
		st.queue = append(st.queue, &place{claim: c, store: s, ends: st.until(now.Add(c.Place))})
	case s.b.bug == PlaceNotProlonged:
		st.queue[i] = &place{claim: c, store: s, ends: st.queue[i].ends}
	default:
		st.queue[i] = &place{claim: c, store: s, ends: st.until(now.Add(c.Place))}
	}
	return dibs.Answer{State: dibs.Held, Left: st.left(ahead, now), Ahead: ahead, Queued: i >= 0}
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
		if errs[i] = validateRenewal(r); errs[i] != nil {
			if s.b.bug == BatchFails {
				return errs[i]
			}
			continue
		}
		errs[i] = s.renew(r)
	}
	return nil
}

func (s *Store) renew(r dibs.Renewal) error {
	now := s.now()
	if s.b.bug == RenewExpired {
		// The lease is found by its token, wherever time has got to.
		if st := s.b.keys[s.b.spell(r.Key)]; st != nil {
			if l := st.holder(r.Token); l != nil {
				l.ends = now.Add(r.TTL)
				return nil
			}
		}
	}
	st := s.b.state(r.Key, now)
	l := st.holder(r.Token)
	if l == nil || l.offered {
		return dibs.ErrLost
	}
	if ends := now.Add(s.b.lasting(r.TTL)); s.b.bug != RenewOnlyExtends || ends.After(l.ends) {
		l.ends = st.until(ends)
	}
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

func validateClaim(c dibs.Claim) error {
	switch {
	case c.Mode > dibs.Look:
		return errors.New("model: unknown mode")
	case c.Permits < 1 || c.Permits > dibs.MaxPermits:
		return errors.New("model: the number of permits is out of range")
	case c.AtMostOnce && c.Permits != 1:
		return errors.New("model: AtMostOnce needs one permit")
	case c.Mode != dibs.Look && c.Token.IsZero():
		return errors.New("model: the token is zero")
	case (c.Mode == dibs.Try || c.Mode == dibs.Queue) && c.TTL < time.Millisecond:
		return errors.New("model: the TTL is below 1 ms")
	case (c.Mode == dibs.Queue || c.Mode == dibs.Reserve) && c.Place < time.Millisecond:
		return errors.New("model: the Place is below 1 ms")
	case c.Place < 0 || c.MaxAge < 0:
		return errors.New("model: the Place or the MaxAge is negative")
	}
	return c.Key.Validate()
}

func validateRenewal(r dibs.Renewal) error {
	switch {
	case r.TTL < time.Millisecond:
		return errors.New("model: the TTL is below 1 ms")
	case len(r.Progress) > dibs.MaxProgress:
		return errors.New("model: the progress is too large")
	}
	return r.Key.Validate()
}
