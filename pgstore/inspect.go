package pgstore

import (
	"cmp"
	"context"
	"iter"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backend"
	"github.com/dibs-go/dibs/internal/engine"
)

var _ dibs.Inspector = (*Store)(nil)

// listed is how many keys are listed by one statement.
const listed = 256

// listSQL finds the next keys, those among them that have only reserved places.
const listSQL = `SELECT k FROM (
	(SELECT k FROM @key WHERE k >= $1 AND k <= $2 AND (token <> '' OR busy OR rec_ends > 0) ORDER BY k LIMIT $3)
	UNION (SELECT DISTINCT k FROM @waiter WHERE k >= $1 AND k <= $2 ORDER BY k LIMIT $3)
) t ORDER BY k LIMIT $3`

// List implements dibs.Inspector. It goes through the keys in their order, some at a
// time, so that it neither holds anything up nor keeps a transaction open.
func (s *Store) List(ctx context.Context, q dibs.Query) iter.Seq2[dibs.Entry, error] {
	return func(yield func(dibs.Entry, error) bool) {
		if err := s.usable(ctx); err != nil {
			yield(dibs.Entry{}, err)
			return
		}
		first, last := engine.Bounds(&q)
		for {
			var page []dibs.Entry
			var next string
			err := try(ctx, func() (err error) {
				page, next, err = s.page(ctx, first, last, &q)
				return err
			})
			if err != nil {
				yield(dibs.Entry{}, err)
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

// page lists some keys, each as it was at one moment. It returns where to go on, ""
// at the end.
func (s *Store) page(ctx context.Context, first, last string, q *dibs.Query) (page []dibs.Entry, next string, err error) {
	wants, n := engine.Tokens{}, 0
	err = s.ask(ctx, s.front, query{s.sql.list, values(first, last, int64(listed)), func(r *reading) {
		var k string
		r.scan(&k)
		next = k + "\x00" // nothing is between
		if key, ok := backend.ParseKey(k); ok && (q.Name == "" || key.Name == q.Name) {
			wants[k] = nil
		}
		n++
	}})
	if n < listed {
		next = ""
	}
	if err != nil || len(wants) == 0 {
		return nil, next, err
	}
	err = s.work(ctx, s.front, looking, wants, func(b *engine.Batch) {
		page = make([]dibs.Entry, len(b.Keys))
		for i, k := range b.Keys {
			b.State(k).Describe(&page[i], q)
		}
	})
	return page, next, err
}

// ForceRelease implements dibs.Inspector.
func (s *Store) ForceRelease(ctx context.Context, key dibs.Key, id string) (n int, err error) {
	err = s.force(ctx, key, func(st *engine.State) { n = st.ForceRelease(id) })
	return n, err
}

// Forget implements dibs.Inspector.
func (s *Store) Forget(ctx context.Context, key dibs.Key) (found bool, err error) {
	err = s.force(ctx, key, func(st *engine.State) { found = st.Forget() })
	return found, err
}

// Resolve implements dibs.Inspector. It returns an error that is dibs.ErrFull
// when the record is larger than Options.MaxRecord.
func (s *Store) Resolve(ctx context.Context, key dibs.Key, id string, data []byte, retention time.Duration) (found bool, err error) {
	x := &dibs.Settlement{Key: key, Outcome: dibs.Keep, Data: data, Retention: retention}
	if err := cmp.Or(x.Validate(), s.fits(x)); err != nil {
		return false, err
	}
	err = s.force(ctx, key, func(st *engine.State) { found = st.Resolve(id, data, retention) })
	return found, err
}

// force changes the state of one key.
func (s *Store) force(ctx context.Context, key dibs.Key, do func(*engine.State)) error {
	if err := cmp.Or(s.usable(ctx), key.Validate()); err != nil {
		return err
	}
	k := engine.KeyOf(key)
	return try(ctx, func() error {
		return s.work(ctx, s.front, locking, engine.Tokens{k: nil}, func(b *engine.Batch) { do(b.State(k)) })
	})
}
