package model

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/dibs-go/dibs/store"
)

// List implements store.Inspector.
func (s *Store) List(ctx context.Context, q store.Query) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		if err := ctx.Err(); err != nil {
			yield(store.Entry{}, err)
			return
		}
		for _, e := range s.entries(q) {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// entries collects under the lock, so that the caller may use the store while
// it reads the list.
func (s *Store) entries(q store.Query) []store.Entry {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	now := time.Now()
	var list []store.Entry
	for k, st := range s.b.keys {
		if q.Namespace != nil && *q.Namespace != k.Namespace || q.Name != "" && q.Name != k.Name || q.Match != nil && !q.Match(k) {
			continue
		}
		st.advance(now)
		if e := st.entry(k, q, now); e.Condition != "" && (s.b.bug == HeldForIgnored || !st.young(e, q, now)) && (q.ID == "" || named(e, q.ID)) &&
			(len(q.Conditions) == 0 || slices.Contains(q.Conditions, e.Condition) || s.b.bug == ConditionsIgnored) {
			list = append(list, e)
		}
	}
	return list
}

// young reports whether HeldFor leaves the key out.
func (st *state) young(e store.Entry, q store.Query, now time.Time) bool {
	if q.HeldFor == 0 || len(st.leases) == 0 || e.Waiters > 0 {
		return false
	}
	for _, l := range st.leases {
		if now.Sub(l.since) >= q.HeldFor {
			return false
		}
	}
	return true
}

func named(e store.Entry, id string) bool {
	return e.Record != nil && e.Record.ID == id ||
		slices.ContainsFunc(e.Runs, func(a store.Run) bool { return a.ID == id })
}

// entry describes the key. Its Condition is "" if the key has nothing.
func (st *state) entry(k store.Key, q store.Query, now time.Time) store.Entry {
	st.front(now)
	e := store.Entry{Key: k}
	for _, r := range st.rows {
		if r.kept && st.b.bug != KeptIsListed {
			continue
		}
		p := st.place(r, now)
		if !p.Reserved || st.b.bug == PlacesWait {
			e.Waiters++
		} else if p.Use == store.Unused {
			e.Reserved++
		}
		if q.Places {
			e.Places = append(e.Places, p)
		}
	}
	for _, l := range st.leases {
		e.Permits = l.claim.Permits
		e.Runs = append(e.Runs, l.describe(now))
	}
	if st.abandoned != nil {
		e.Runs = append(e.Runs, st.abandoned.last.describe(now))
	}
	if r := st.record; r != nil {
		e.Record = &store.RecordInfo{
			ID: r.token.ID(), Bytes: len(r.data), Age: now.Sub(r.written), Left: r.ends.Sub(now),
		}
		if q.Data {
			e.Record.Data = r.data
		}
	}
	switch {
	case len(st.leases) > 0:
		e.Condition = store.ConditionHeld
	case st.unknown():
		e.Condition = store.ConditionUnknown
	case e.Waiters > 0 || slices.ContainsFunc(st.rows, (*row).reserved):
		e.Condition = store.ConditionWaiting
	case st.record != nil:
		e.Condition = store.ConditionDone
	case st.abandoned != nil:
		e.Condition = store.ConditionAbandoned
	}
	return e
}

// place describes a place.
func (st *state) place(r *row, now time.Time) store.PlaceInfo {
	p := store.PlaceInfo{Token: r.claim.Token, Owner: r.claim.Owner, Left: r.ends.Sub(now), Reserved: r.reserved()}
	if !p.Reserved {
		return p
	}
	switch {
	case st.leased(r.number):
		p.Use = store.UsedByLease
	case st.attended(r.number):
		p.Use = store.UsedByWait
	}
	p.Blocks = p.Left
	if grace := r.claim.Grace; grace > 0 && st.b.bug != BlocksWhileThere {
		since := now
		if !st.free.IsZero() {
			since = st.free
			if r.asked.After(since) {
				since = r.asked
			}
		}
		p.Blocks = min(p.Left, since.Add(grace).Sub(now))
	}
	return p
}

func (l *lease) describe(now time.Time) store.Run {
	return store.Run{
		ID: l.claim.Token.ID(), Owner: l.claim.Owner, Fence: l.fence, Attempt: l.attempt,
		Since: now.Sub(l.since), Left: l.ends.Sub(now),
	}
}

// ForceRelease implements store.Inspector.
func (s *Store) ForceRelease(ctx context.Context, key store.Key, id string) (ended int, err error) {
	err = s.step(ctx, key, func(st *state, now time.Time) bool {
		if a := st.abandoned; a != nil && (id == "" || a.last.claim.Token.ID() == id) {
			ended, st.abandoned = 1, nil
		}
		for _, l := range slices.Clone(st.leases) {
			if id == "" || l.claim.Token.ID() == id {
				ended++
				st.clean(l)
			}
		}
		return ended > 0 && s.b.bug != ForceReleaseStrands
	})
	return ended, err
}

// step does something with what is known of a key, and serves the next if that is due.
func (s *Store) step(ctx context.Context, key store.Key, do func(st *state, now time.Time) bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	now := time.Now()
	st := s.b.state(key, now)
	if do(st, now) {
		st.serve(now)
	}
	return nil
}

// Forget implements store.Inspector.
func (s *Store) Forget(ctx context.Context, key store.Key, id string) (forgot bool, err error) {
	err = s.step(ctx, key, func(st *state, _ time.Time) bool {
		if s.b.bug == ForgetReleases {
			delete(s.b.keys, key)
		}
		is := func(t store.Token) bool { return id == "" || id == t.ID() || s.b.bug == ForgetAny }
		if st.record != nil && is(st.record.token) {
			st.record, forgot = nil, true
		}
		if st.abandoned != nil && is(st.abandoned.last.claim.Token) {
			st.abandoned, forgot = nil, true
		}
		return forgot
	})
	return forgot, err
}

// Resolve implements store.Inspector.
func (s *Store) Resolve(ctx context.Context, key store.Key, id string, data []byte, retention time.Duration) (resolved bool, err error) {
	err = s.step(ctx, key, func(st *state, now time.Time) bool {
		if !st.unknown() || id != "" && id != st.abandoned.last.claim.Token.ID() && s.b.bug != ResolveAny {
			return false
		}
		c := st.abandoned.last.claim
		st.abandoned, resolved = nil, true
		st.keep(c.Token, c.Fingerprint, data, retention, now)
		return true
	})
	return resolved, err
}

// Prune implements store.Pruner. It finds only what has ended since the last call for its key.
func (s *Store) Prune(ctx context.Context, limit int) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	now := time.Now()
	removed := 0
	for k, st := range s.b.keys {
		if limit > 0 && removed >= limit {
			break
		}
		if s.b.bug == PruneLive {
			delete(s.b.keys, k)
			removed++
			continue
		}
		before := st.record
		st.advance(now)
		if before != nil && st.record == nil {
			removed++
		}
	}
	return removed, nil
}
