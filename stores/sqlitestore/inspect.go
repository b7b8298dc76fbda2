package sqlitestore

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/store/storekit"
)

// page is how many keys List reads in one transaction.
const page = 64

// parts are the statements that list the keys of a part.
var parts = map[storekit.Part]string{storekit.All: "allKeys", storekit.Live: "keys", storekit.Kept: "recordKeys"}

// List implements store.Inspector. It reads a few keys at a time, in transactions that it
// shares with calls.
func (s *Store) List(ctx context.Context, q store.Query) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		low, high, one := keyRange(&q)
		for more := true; more; {
			var entries []store.Entry
			var keys [][]byte
			err := s.work(ctx, func(tx *transaction) {
				if keys = [][]byte{one}; one == nil {
					keys = tx.nextKeys(parts[storekit.PartOf(&q)], low, high, page)
				}
				entries = tx.describeAll(keys, &q)
			})
			if err != nil {
				yield(store.Entry{}, err)
				return
			}
			if more = len(keys) == page; more {
				low = keys[page-1]
			}
			for i := range entries {
				if !yield(entries[i], nil) {
					return
				}
			}
		}
	}
}

// keyRange returns the bounds of a query's keys, or the only key.
func keyRange(q *store.Query) (low, high, one []byte) {
	switch {
	case q.Namespace == nil:
		return nil, []byte{255}, nil
	case q.Name != "":
		return nil, nil, storekit.AppendKey(nil, store.Key{Namespace: *q.Namespace, Name: q.Name})
	}
	low = storekit.AppendKey(nil, store.Key{Namespace: *q.Namespace})
	// No key is longer, so this is above all keys of the namespace.
	return low, append(slices.Clone(low), slices.Repeat([]byte{255}, store.MaxKey+1)...), nil
}

// nextKeys returns the first keys between two, in order.
func (tx *transaction) nextKeys(name string, low, high []byte, most int) (keys [][]byte) {
	for row := range tx.rows(name, low, high, int64(most)) {
		keys = append(keys, row.Copy(0))
	}
	return keys
}

// describeAll describes the keys that match the query.
func (tx *transaction) describeAll(keys [][]byte, q *store.Query) (entries []store.Entry) {
	for _, k := range keys {
		key, ok := storekit.ParseKey(string(k))
		if !ok {
			tx.err = fmt.Errorf("%w: it has an invalid key of %d bytes", ErrDamaged, len(k))
			return nil
		}
		if !storekit.Selects(q, key) {
			continue
		}
		e := tx.describe(key, q)
		if storekit.Matches(&e, q) {
			entries = append(entries, e)
		}
	}
	return entries
}

// describe describes a key. The Condition is "" if nothing is known of the key.
func (tx *transaction) describe(key store.Key, q *store.Query) (e store.Entry) {
	tx.use(key, store.Token{})
	tx.decide(true, func(st *engine.State) {
		e = store.Entry{}
		st.Describe(&e, q)
	})
	return e
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

// Resolve implements store.Inspector. It returns store.ErrTooLarge when data is larger than
// Options.MaxRecord.
func (s *Store) Resolve(ctx context.Context, key store.Key, id string, data []byte, retention time.Duration) (found bool, err error) {
	x := store.Settlement{Key: key, Outcome: store.Keep, Data: slices.Clone(data), Retention: retention} // the call may outlast the caller
	if err := s.checkSettlement(&x); err != nil {
		return false, err
	}
	err = s.force(ctx, key, func(st *engine.State) { found = st.Resolve(id, x.Data, retention) })
	return found, err
}

// force changes a key's state and serves the next waiter.
func (s *Store) force(ctx context.Context, key store.Key, change func(*engine.State)) error {
	if err := key.Validate(); err != nil {
		return err
	}
	return s.work(ctx, func(tx *transaction) {
		tx.use(key, store.Token{})
		tx.decide(false, change)
	})
}
