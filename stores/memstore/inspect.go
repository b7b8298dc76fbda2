package memstore

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/store/storekit"
)

// List implements store.Inspector. A key that exists from the beginning to the end is listed
// once. The caller may use the store while it reads.
func (s *Store) List(ctx context.Context, q store.Query) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		for _, key := range s.keysOf(&q) {
			if err := s.usable(ctx); err != nil {
				yield(store.Entry{}, err)
				return
			}
			found := store.Entry{}
			_ = s.step(key, store.Token{}, func(_ *shard, _ *entry, st *engine.State) error {
				st.Describe(&found, &q)
				return nil
			})
			if found.Key = key; storekit.Matches(&found, &q) && !yield(found, nil) {
				return
			}
		}
		if err := s.usable(ctx); err != nil {
			yield(store.Entry{}, err)
		}
	}
}

// keysOf returns the keys that the query may match.
func (s *Store) keysOf(q *store.Query) (keys []store.Key) {
	if q.Namespace != nil && q.Name != "" {
		if k := (store.Key{Namespace: *q.Namespace, Name: q.Name}); storekit.Selects(q, k) {
			return []store.Key{k}
		}
		return nil
	}
	part := storekit.PartOf(q)
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for k, e := range sh.entries {
			if e.in(part) && storekit.Selects(q, k) {
				keys = append(keys, k)
			}
		}
		sh.mu.Unlock()
	}
	return keys
}

// in reports whether the entry is in that part of the keys.
func (e *entry) in(part storekit.Part) bool {
	switch part {
	case storekit.Live:
		return e.life != nil
	case storekit.Kept:
		return e.record.Ends != 0
	}
	return true
}

// ForceRelease implements store.Inspector.
func (s *Store) ForceRelease(ctx context.Context, key store.Key, id string) (ended int, err error) {
	err = s.force(ctx, key, func(_ *shard, _ *entry, st *engine.State) error {
		ended = st.ForceRelease(id)
		return nil
	})
	return ended, err
}

// Forget implements store.Inspector.
func (s *Store) Forget(ctx context.Context, key store.Key, id string) (forgot bool, err error) {
	err = s.force(ctx, key, func(_ *shard, _ *entry, st *engine.State) error {
		forgot = st.Forget(id)
		return nil
	})
	return forgot, err
}

// Resolve implements store.Inspector. It returns an error that is store.ErrFull when the
// record would be beyond MaxBytes.
func (s *Store) Resolve(ctx context.Context, key store.Key, id string, data []byte, retention time.Duration) (resolved bool, err error) {
	if retention < store.MinDuration {
		return false, fmt.Errorf("memstore: the retention is %v; it must be at least %v", retention, store.MinDuration)
	}
	err = s.force(ctx, key, func(_ *shard, e *entry, st *engine.State) error {
		if st.Resolves(id) && !s.take(len(data)-len(e.data)) {
			return errNoBytes
		}
		resolved = st.Resolve(id, data, retention)
		return nil
	})
	return resolved, err
}

// force runs do on the entry of a key, if there is one.
func (s *Store) force(ctx context.Context, key store.Key, do func(*shard, *entry, *engine.State) error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	if err := key.Validate(); err != nil {
		return err
	}
	if err := s.step(key, store.Token{}, do); err != store.ErrLost {
		return err
	}
	return nil
}
