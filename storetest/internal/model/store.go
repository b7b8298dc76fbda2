package model

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
)

// Store is one process's way to a Backend.
type Store struct {
	b     *Backend
	broke atomic.Bool

	listeners map[int]func(dibs.Token, dibs.Answer) // by the number that each was given
	listened  int
}

var (
	_ dibs.Store     = (*Store)(nil)
	_ dibs.Inspector = (*Store)(nil)
	_ dibs.Notifier  = (*Store)(nil)
	_ dibs.Pruner    = (*Store)(nil)
)

// Break makes every later call of Claim fail as a whole, as when the backend is down.
func (s *Store) Break() { s.broke.Store(true) }

// Notify implements dibs.Notifier.
func (s *Store) Notify(wake func(dibs.Token, dibs.Answer)) (stop func()) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.listened++
	number := s.listened
	s.listeners[number] = wake
	return func() {
		s.b.mu.Lock()
		defer s.b.mu.Unlock()
		if s.b.bug != StoppedIsWoken {
			delete(s.listeners, number)
		}
	}
}

// wake wakes a waiter of the process, with its grant or to ask.
func (s *Store) wake(t dibs.Token, a dibs.Answer) {
	for _, wake := range s.listeners {
		wake(t, a)
	}
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
		if err := c.Validate(); err != nil {
			answers[i] = dibs.Answer{Err: err}
			continue
		}
		if j, ok := seen[c.Key]; ok && s.b.bug == BatchMerges {
			answers[i] = answers[j]
			continue
		}
		seen[c.Key] = i
		now := time.Now()
		answers[i] = s.claim(s.b.state(c.Key, now), c, now)
		if answers[i].State == dibs.Granted {
			s.b.said = max(s.b.said, answers[i].Fence)
		}
	}
	return nil
}

// claim answers a valid claim.
func (s *Store) claim(st *state, c dibs.Claim, now time.Time) dibs.Answer {
	if l := st.lease(c.Token); l != nil {
		switch {
		case c.Mode == dibs.Look:
			return dibs.Answer{State: dibs.Free}
		case c.Mode != dibs.Reserve && s.b.bug != ClaimKeepsTTL:
			l.ends = now.Add(c.TTL)
		}
		return l.answer()
	}
	if a := st.answered(c, now); a.State != 0 {
		if s.b.bug == MismatchJoins && c.Mode == dibs.Queue && a.State == dibs.Mismatch {
			st.join(c, 0, s, now)
			return a
		}
		if c.Mode != dibs.Look && a.State != dibs.Unknown && s.b.bug != AnsweredKeepsPlace {
			if s.b.bug == AnsweredEndsFrom {
				st.leave(c.From)
			}
			if st.leave(c.Token) {
				st.serve(now)
			}
		}
		return a
	}
	if c.Mode == dibs.Reserve {
		st.join(c, 0, s, now)
		return st.held(c, now)
	}

	front, number := st.front(now), st.number(c)
	turn := st.ahead(number) == 0
	two := st.leased(number) && s.b.bug != TwoAtANumber
	room := st.room(c)
	if s.b.bug == LightOvertakes && room && c.Weight < c.Permits && front != nil && !front.reserved() {
		turn = true
	}
	switch {
	case turn && !two && room && c.Mode == dibs.Look:
		return dibs.Answer{State: dibs.Free, Queued: number != 0}
	case turn && !two && room:
		l := st.grant(c, number, now)
		if s.b.bug != GrantStrands {
			st.serve(now) // there may be more permits
		}
		return l.answer()
	case c.Mode == dibs.Look && s.b.bug != HoldStartsAtLook:
	case !turn && (room || s.b.bug == HoldWhileHeld), two && s.b.bug == HoldStartsAtLeased:
		if front != nil && (front.reserved() || s.b.bug == HoldStartsAtWaiter) && st.free.IsZero() {
			st.free = now
		}
	}
	if r := st.row(c.From); s.b.bug == HoldSetTooEarly && r != nil {
		r.claim.Hold = c.Hold
	}
	if c.Mode == dibs.Queue {
		st.join(c, number, s, now)
	}
	return st.held(c, now)
}

// answered returns the answer that does not depend on the claim's turn, or none.
func (st *state) answered(c dibs.Claim, now time.Time) dibs.Answer {
	switch r := st.record; {
	case st.differs(c, now):
		return dibs.Answer{State: dibs.Mismatch}
	case st.accepts(c, now):
		return dibs.Answer{State: dibs.Done, Record: dibs.Record{
			Data: r.data, Age: now.Sub(r.written), Left: r.ends.Sub(now),
		}}
	case st.unknown():
		return dibs.Answer{State: dibs.Unknown, ID: st.abandoned.last.claim.Token.ID()}
	}
	return dibs.Answer{}
}

// differs reports whether the claim's fingerprint differs from that of a holder, of the last
// abandoned lease or of the record.
func (st *state) differs(c dibs.Claim, now time.Time) bool {
	return slices.ContainsFunc(st.leases, func(l *lease) bool { return l.claim.Fingerprint.Differs(c.Fingerprint) }) ||
		st.abandoned != nil && st.abandoned.last.claim.Fingerprint.Differs(c.Fingerprint) ||
		st.accepts(c, now) && st.record.asked.Differs(c.Fingerprint)
}

// accepts reports whether the record answers the claim.
func (st *state) accepts(c dibs.Claim, now time.Time) bool {
	r := st.record
	return r != nil && c.MaxAge > 0 && (now.Sub(r.written) <= c.MaxAge || st.b.bug == MaxAgeIgnored)
}

// join gives the claim a place, or keeps the one that it has. A new one has that
// number, or the next one if it is 0.
func (st *state) join(c dibs.Claim, number int, s *Store, now time.Time) {
	r := st.row(c.Token)
	switch {
	case r != nil:
	case number == 0:
		st.b.seq++
		r = &row{number: st.b.seq}
		st.rows = append(st.rows, r)
	default:
		r = &row{number: number}
		i := slices.IndexFunc(st.rows, func(r *row) bool { return r.number > number })
		if i < 0 {
			i = len(st.rows)
		}
		st.rows = slices.Insert(st.rows, i, r)
	}
	r.claim, r.ends, r.asked, r.store = c, now.Add(c.Stay), now, s
	if st.b.bug == HoldStartsAtReserve && c.Mode == dibs.Reserve && st.free.IsZero() {
		st.free = now
	}
}

// held answers a claim that is kept from the key.
func (st *state) held(c dibs.Claim, now time.Time) dibs.Answer {
	number := st.number(c)
	a := dibs.Answer{State: dibs.Held, Fence: st.b.highest(now), Ahead: st.ahead(number), Queued: number != 0}
	sooner := func(ends time.Time) {
		if d := ends.Sub(now); a.Left == 0 || d < a.Left {
			a.Left = d
		}
	}
	for _, l := range st.leases {
		sooner(l.ends)
	}
	if st.b.bug == LeftOfPlaces {
		for _, r := range st.rows {
			sooner(r.ends)
		}
	}
	return a
}

// Renew implements dibs.Store.
func (s *Store) Renew(ctx context.Context, renewals []dibs.Renewal, errs []error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for i, r := range renewals {
		if errs[i] = r.Validate(); errs[i] != nil {
			continue
		}
		errs[i] = dibs.ErrLost
		_ = s.step(ctx, r.Key, func(st *state, now time.Time) bool {
			if l := st.lease(r.Token); l != nil {
				l.ends, errs[i] = now.Add(r.TTL), nil
				if r.Progress != nil {
					l.progress = s.b.copy(r.Progress)
				}
			}
			return false
		})
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
