package remote

import (
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/store/storekit"
)

const (
	// listed is how many keys are described by one transaction.
	listed = 256
	// matched is how many keys one statement reads if Match selects some of them.
	matched = 4096
)

// List implements store.Inspector. It lists the keys in their order, 256 at a time, so that
// it neither delays other calls nor keeps a transaction open.
func (s *Store) List(ctx context.Context, q store.Query) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		err := s.server.Usable(ctx)
		first, last := bounds(&q)
		for more := true; more && err == nil; {
			var keys []string
			keys, first, err = s.some(ctx, first, last, &q)
			more = first != ""
			for part := range slices.Chunk(keys, listed) {
				var page []store.Entry
				if page, err = s.page(ctx, part, &q); err != nil {
					break
				}
				for _, e := range page {
					if storekit.Matches(&e, &q) && !yield(e, nil) {
						return
					}
				}
			}
		}
		if err != nil {
			yield(store.Entry{}, err)
		}
	}
}

// some returns some keys that the query may select, and where the next ones begin, "" at the
// end.
func (s *Store) some(ctx context.Context, first, last string, q *store.Query) (keys []string, next string, err error) {
	limit := listed
	if q.Match != nil || q.Name != "" {
		limit = matched
	}
	var all []string
	err = s.server.Try(ctx, func() (err error) {
		all, err = s.server.List(ctx, storekit.PartOf(q), first, last, limit)
		return err
	})
	if len(all) >= limit {
		next = all[len(all)-1] + "\x00" // no key is in between
	}
	for _, k := range all {
		if key, ok := storekit.ParseKey(k); ok && storekit.Selects(q, key) {
			keys = append(keys, k)
		}
	}
	return keys, next, err
}

// page describes some keys, each as of one moment.
func (s *Store) page(ctx context.Context, keys []string, q *store.Query) (page []store.Entry, err error) {
	wants := engine.Tokens{}
	for _, k := range keys {
		wants[k] = nil
	}
	err = s.server.Try(ctx, func() error {
		return s.work(ctx, Looking, wants, func(b *engine.Batch) {
			page = make([]store.Entry, len(b.Keys))
			for i, k := range b.Keys {
				b.State(k).Describe(&page[i], q)
			}
		})
	})
	return page, err
}

// ForceRelease implements store.Inspector.
func (s *Store) ForceRelease(ctx context.Context, key store.Key, id string) (n int, err error) {
	err = s.force(ctx, key, func(st *engine.State) { n = st.ForceRelease(id) })
	return n, err
}

// Forget implements store.Inspector.
func (s *Store) Forget(ctx context.Context, key store.Key, id string) (found bool, err error) {
	err = s.force(ctx, key, func(st *engine.State) { found = st.Forget(id) })
	return found, err
}

// Resolve implements store.Inspector. It returns an error that is store.ErrTooLarge if the
// record is larger than the store or the server takes.
func (s *Store) Resolve(ctx context.Context, key store.Key, id string, data []byte, retention time.Duration) (found bool, err error) {
	x := &store.Settlement{Key: key, Outcome: store.Keep, Data: data, Retention: retention}
	if err := Validate(s.server, x); err != nil {
		return false, err
	}
	err = s.force(ctx, key, func(st *engine.State) { found = st.Resolve(id, data, retention) })
	return found, err
}

// bounds returns the first and the last k that the query asks for.
func bounds(q *store.Query) (first, last string) {
	switch {
	case q.Namespace == nil:
		return "", "\xff" // no namespace is that long
	case q.Name == "":
		first = engine.KeyOf(store.Key{Namespace: *q.Namespace})
		return first, first + strings.Repeat("\xff", store.MaxKey+1)
	}
	k := engine.KeyOf(store.Key{Namespace: *q.Namespace, Name: q.Name})
	return k, k
}
