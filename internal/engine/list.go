package engine

import (
	"context"
	"iter"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backend"
)

// listed is how many keys are listed by one statement.
const listed = 256

// List implements dibs.Inspector. It lists the keys in their order, 256 at a time, so that
// it neither delays other calls nor keeps a transaction open.
func (s *Store) List(ctx context.Context, q dibs.Query) iter.Seq2[dibs.Entry, error] {
	return func(yield func(dibs.Entry, error) bool) {
		err := s.server.Usable(ctx)
		first, last := bounds(&q)
		for more := true; more && err == nil; {
			var page []dibs.Entry
			var next string
			err = s.server.Try(ctx, func() (err error) {
				page, next, err = s.page(ctx, first, last, &q)
				return err
			})
			if err != nil {
				break
			}
			for _, e := range page {
				if backend.Matches(&e, &q) && !yield(e, nil) {
					return
				}
			}
			first, more = next, next != ""
		}
		if err != nil {
			yield(dibs.Entry{}, err)
		}
	}
}

// page lists some keys, each as of one moment. It returns where the next page begins, ""
// at the end.
func (s *Store) page(ctx context.Context, first, last string, q *dibs.Query) (page []dibs.Entry, next string, err error) {
	keys, err := s.server.List(ctx, first, last, listed)
	wants := Tokens{}
	for _, k := range keys {
		if key, ok := backend.ParseKey(k); ok && (q.Name == "" || key.Name == q.Name) {
			wants[k] = nil
		}
	}
	if len(keys) == listed {
		next = keys[listed-1] + "\x00" // no key is in between
	}
	if err != nil || len(wants) == 0 {
		return nil, next, err
	}
	err = s.work(ctx, Looking, wants, func(b *Batch) {
		page = make([]dibs.Entry, len(b.Keys))
		for i, k := range b.Keys {
			b.State(k).Describe(&page[i], q)
		}
	})
	return page, next, err
}

// ForceRelease implements dibs.Inspector.
func (s *Store) ForceRelease(ctx context.Context, key dibs.Key, id string) (n int, err error) {
	err = s.force(ctx, key, func(st *State) { n = st.ForceRelease(id) })
	return n, err
}

// Forget implements dibs.Inspector.
func (s *Store) Forget(ctx context.Context, key dibs.Key) (found bool, err error) {
	err = s.force(ctx, key, func(st *State) { found = st.Forget() })
	return found, err
}

// Resolve implements dibs.Inspector. It returns an error that is dibs.ErrTooLarge if the
// record is larger than the store or the server takes.
func (s *Store) Resolve(ctx context.Context, key dibs.Key, id string, data []byte, retention time.Duration) (found bool, err error) {
	x := &dibs.Settlement{Key: key, Outcome: dibs.Keep, Data: data, Retention: retention}
	if err := Validate(s.server, x); err != nil {
		return false, err
	}
	err = s.force(ctx, key, func(st *State) { found = st.Resolve(id, data, retention) })
	return found, err
}
