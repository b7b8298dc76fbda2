package mysqlstore

import (
	"cmp"
	"context"
	"iter"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backend"
)

var _ dibs.Inspector = (*Store)(nil)

// listed is how many keys are listed by one statement.
const listed = 256

// List implements dibs.Inspector. It goes through the keys in their order, some at a
// time, so that it neither holds anything up nor keeps a transaction open.
func (s *Store) List(ctx context.Context, q dibs.Query) iter.Seq2[dibs.Entry, error] {
	return func(yield func(dibs.Entry, error) bool) {
		if err := s.usable(ctx); err != nil {
			yield(dibs.Entry{}, err)
			return
		}
		first, last := bounds(&q)
		for {
			page, next, err := s.page(ctx, first, last, &q)
			if err != nil {
				yield(dibs.Entry{}, explain(err))
				return
			}
			for _, e := range page {
				if backend.Matches(&e, &q) && !yield(e, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			first = next
		}
	}
}

// bounds returns from which k, and up to which, what the query asks for is.
func bounds(q *dibs.Query) (first, last string) {
	switch {
	case q.Namespace == nil:
		return "", "\xff" // no namespace is that long
	case q.Name == "":
		first = keyOf(dibs.Key{Namespace: *q.Namespace})
		return first, first + strings.Repeat("\xff", dibs.MaxKey+1)
	}
	k := keyOf(dibs.Key{Namespace: *q.Namespace, Name: q.Name})
	return k, k
}

// page lists some keys, each as it was at one moment. It returns where to go on, ""
// at the end.
func (s *Store) page(ctx context.Context, first, last string, q *dibs.Query) (page []dibs.Entry, next string, err error) {
	wants, n := tokens{}, 0
	find := s.script()
	find.raw("SELECT k FROM @key FORCE INDEX (PRIMARY) WHERE k>=").value(first).raw(" AND k<=").value(last)
	find.raw(" ORDER BY k LIMIT ").value(int64(listed)).asks(func(r *reading) {
		var k string
		r.scan(&k)
		next = k + "\x00" // nothing is between
		if key, ok := backend.ParseKey(k); ok && (q.Name == "" || key.Name == q.Name) {
			wants[k] = nil
		}
		n++
	})
	if err := find.on(ctx, s.front); err != nil {
		return nil, "", err
	}
	if n < listed {
		next = ""
	}
	if len(wants) == 0 {
		return nil, next, nil
	}
	err = s.work(ctx, s.front, looking, wants, func(b *batch) {
		page = make([]dibs.Entry, len(b.keys))
		for i, k := range b.keys {
			b.states[k].describe(&page[i], q)
		}
	})
	return page, next, err
}

// describe tells of a key. The Condition is "" when there is nothing to tell.
func (st *state) describe(e *dibs.Entry, q *dibs.Query) {
	st.advance()
	st.front() // reserved places whose Hold is over
	e.Key, _ = backend.ParseKey(st.k)
	e.Waiters = len(st.queue.places)
	st.short = !st.queue.complete
	for _, p := range st.queue.places {
		if q.Places {
			e.Places = append(e.Places, dibs.PlaceInfo{
				Token: p.token, Owner: dibs.ParseOwner(p.owner), Left: duration(p.ends - st.now), Reserved: p.kind == reserved,
			})
		}
	}
	all := st.holders
	if len(all) > 0 {
		e.Permits = int(all[0].permits)
	}
	if st.lost != nil {
		all = append(all[:len(all):len(all)], *st.lost)
	}
	for _, l := range all {
		e.Attempts = append(e.Attempts, dibs.Attempt{
			ID: l.token.ID(), Owner: dibs.ParseOwner(l.owner), Fence: uint64(l.fence), Attempt: int(l.attempt),
			Since: duration(st.now - l.since), Left: duration(l.ends - st.now),
		})
	}
	if r := &st.record; r.ends > st.now {
		e.Record = &dibs.RecordInfo{ID: r.token.ID(), Age: duration(max(st.now-r.written, 0)), Left: duration(r.ends - st.now)}
		st.writes.recordInfo(e.Record, q.Data)
	}
	backend.Describe(e, len(st.holders) > 0, st.unknown(), st.lost != nil)
}

// Evict implements dibs.Inspector.
func (s *Store) Evict(ctx context.Context, key dibs.Key, id string) (n int, err error) {
	err = s.force(ctx, key, func(st *state) { n = st.evict(id) })
	return n, err
}

// Forget implements dibs.Inspector.
func (s *Store) Forget(ctx context.Context, key dibs.Key) (found bool, err error) {
	err = s.force(ctx, key, func(st *state) { found = st.forget() })
	return found, err
}

// Resolve implements dibs.Inspector. Data larger than Options.MaxRecord, or than the
// server takes, is answered dibs.ErrFull.
func (s *Store) Resolve(ctx context.Context, key dibs.Key, id string, data []byte, retention time.Duration) (found bool, err error) {
	x := &dibs.Settlement{Key: key, Outcome: dibs.Keep, Data: data, Retention: retention}
	if err := cmp.Or(x.Validate(), s.fits(x)); err != nil {
		return false, err
	}
	err = s.force(ctx, key, func(st *state) { found = st.resolve(id, data, retention) })
	return found, err
}

// force changes the state of one key.
func (s *Store) force(ctx context.Context, key dibs.Key, do func(*state)) error {
	if err := cmp.Or(s.usable(ctx), key.Validate()); err != nil {
		return err
	}
	k := keyOf(key)
	return try(ctx, func() error {
		return s.work(ctx, s.front, locking, tokens{k: nil}, func(b *batch) { do(b.states[k]) })
	})
}
