package model

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/store"
)

// Store is one process's way to a Backend.
type Store struct {
	b     *Backend
	broke atomic.Bool

	relays    bool
	listeners map[int]func(store.Token, store.Answer) // by the number that each was given
	listened  int
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Inspector = (*Store)(nil)
	_ store.Notifier  = (*Store)(nil)
	_ store.Pruner    = (*Store)(nil)
	_ store.Relayer   = (*Store)(nil)
)

// Relay implements store.Relayer.
func (s *Store) Relay() { s.relays = true }

// Break makes every later call of Claim fail as a whole, as when the backend is down.
func (s *Store) Break() { s.broke.Store(true) }

// Notify implements store.Notifier.
func (s *Store) Notify(wake func(store.Token, store.Answer)) (stop func()) {
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
func (s *Store) wake(t store.Token, a store.Answer) {
	for _, wake := range s.listeners {
		wake(t, a)
	}
}

// Claim implements store.Store.
func (s *Store) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.broke.Load() {
		return errors.New("model: broken")
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	seen := map[store.Key]int{}
	for i, c := range claims {
		if err := c.Validate(); err != nil {
			answers[i] = store.Answer{Err: err}
			continue
		}
		if j, ok := seen[c.Key]; ok && s.b.bug == BatchMerges {
			answers[i] = answers[j]
			continue
		}
		seen[c.Key] = i
		now := time.Now()
		answers[i] = s.claim(s.b.state(c.Key, now), c, now)
		if answers[i].State == store.Granted {
			s.b.said = max(s.b.said, answers[i].Fence)
		}
	}
	return nil
}

// claim answers a valid claim.
func (s *Store) claim(st *state, c store.Claim, now time.Time) store.Answer {
	if l := st.lease(c.Token); l != nil {
		switch {
		case c.Mode == store.Look:
			return store.Answer{State: store.Free}
		case c.Mode != store.Reserve && s.b.bug != ClaimKeepsTTL:
			l.ends = now.Add(c.TTL)
		}
		return l.answer()
	}
	if a := st.answered(c, now); a.State != 0 {
		if s.b.bug == MismatchJoins && c.Mode == store.Queue && a.State == store.Mismatch {
			st.join(c, 0, s, now)
			return a
		}
		if c.Mode != store.Look && a.State != store.Unknown && s.b.bug != AnsweredKeepsPlace {
			if s.b.bug == AnsweredEndsFrom {
				st.leave(c.From)
			}
			if st.leave(c.Token) {
				st.serve(now)
			}
		}
		return a
	}
	if c.Mode == store.Reserve {
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
	case turn && !two && room && c.Mode == store.Look:
		return store.Answer{State: store.Free, Queued: number != 0}
	case turn && !two && room:
		l := st.grant(c, number, now)
		if s.b.bug != GrantStrands {
			st.serve(now) // there may be more permits
		}
		return l.answer()
	case c.Mode == store.Look && s.b.bug != GraceStartsAtLook:
	case !turn && (room || s.b.bug == GraceWhileHeld), two && s.b.bug == GraceStartsAtLeased:
		if front != nil && (front.reserved() || s.b.bug == GraceStartsAtWaiter) && st.free.IsZero() {
			st.free = now
		}
	}
	if r := st.row(c.From); s.b.bug == GraceSetTooEarly && r != nil {
		r.claim.Grace = c.Grace
	}
	if c.Mode == store.Queue {
		st.join(c, number, s, now)
	}
	return st.held(c, now)
}

// answered returns the answer that does not depend on the claim's turn, or none.
func (st *state) answered(c store.Claim, now time.Time) store.Answer {
	switch r := st.record; {
	case st.differs(c, now):
		return store.Answer{State: store.Mismatch}
	case st.accepts(c, now):
		return store.Answer{State: store.Done, Record: store.Record{
			Data: r.data, Age: now.Sub(r.written), Left: r.ends.Sub(now),
		}}
	case st.unknown():
		return store.Answer{State: store.Unknown, ID: st.abandoned.last.claim.Token.ID()}
	}
	return store.Answer{}
}

// differs reports whether the claim's fingerprint differs from that of a holder, of the last
// abandoned lease or of the record.
func (st *state) differs(c store.Claim, now time.Time) bool {
	return slices.ContainsFunc(st.leases, func(l *lease) bool { return l.claim.Fingerprint.Differs(c.Fingerprint) }) ||
		st.abandoned != nil && st.abandoned.last.claim.Fingerprint.Differs(c.Fingerprint) ||
		st.accepts(c, now) && st.record.asked.Differs(c.Fingerprint)
}

// accepts reports whether the record answers the claim.
func (st *state) accepts(c store.Claim, now time.Time) bool {
	r := st.record
	return r != nil && c.MaxAge > 0 && (now.Sub(r.written) <= c.MaxAge || st.b.bug == MaxAgeIgnored)
}

// join gives the claim a place, or keeps the one that it has. A new one has that
// number, or the next one if it is 0.
func (st *state) join(c store.Claim, number int, s *Store, now time.Time) {
	r := st.row(c.Token)
	switch {
	case r != nil:
	case number == 0:
		st.b.seq++
		r = &row{number: st.b.seq}
		st.rows = append(st.rows, r)
	default:
		r = &row{number: number}
		st.insert(r)
	}
	r.claim, r.ends, r.asked, r.store, r.kept = c, now.Add(c.PlaceTTL), now, s, false
	if st.b.bug == GraceStartsAtReserve && c.Mode == store.Reserve && st.free.IsZero() {
		st.free = now
	}
}

// held answers a claim that is kept from the key.
func (st *state) held(c store.Claim, now time.Time) store.Answer {
	number := st.number(c)
	a := store.Answer{State: store.Held, Fence: st.b.highest(now), Ahead: st.ahead(number), Queued: number != 0}
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

// Renew implements store.Store.
func (s *Store) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for i, r := range renewals {
		if errs[i] = r.Validate(); errs[i] != nil {
			continue
		}
		errs[i] = store.ErrLost
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
