package memstore

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backend"
	"github.com/dibs-go/dibs/internal/engine"
)

// List implements dibs.Inspector. A key that exists from the beginning to the end is listed
// once. The caller may use the store while it reads.
func (s *Store) List(ctx context.Context, q dibs.Query) iter.Seq2[dibs.Entry, error] {
	return func(yield func(dibs.Entry, error) bool) {
		for _, key := range s.keysOf(&q) {
			if err := s.usable(ctx); err != nil {
				yield(dibs.Entry{}, err)
				return
			}
			found := dibs.Entry{}
			_ = s.step(key, dibs.Token{}, func(_ *shard, _ *entry, st *engine.State) error {
				st.Describe(&found, &q)
				return nil
			})
			if found.Key = key; backend.Matches(&found, &q) && !yield(found, nil) {
				return
			}
		}
		if err := s.usable(ctx); err != nil {
			yield(dibs.Entry{}, err)
		}
	}
}

// keysOf returns the keys that the query may match.
func (s *Store) keysOf(q *dibs.Query) (keys []dibs.Key) {
	if q.Namespace != nil && q.Name != "" {
		if k := (dibs.Key{Namespace: *q.Namespace, Name: q.Name}); backend.Selects(q, k) {
			return []dibs.Key{k}
		}
		return nil
	}
	part := backend.PartOf(q)
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for k, e := range sh.entries {
			if e.in(part) && backend.Selects(q, k) {
				keys = append(keys, k)
			}
		}
		sh.mu.Unlock()
	}
	return keys
}

// in reports whether the entry is in that part of the keys.
func (e *entry) in(part backend.Part) bool {
	switch part {
	case backend.Live:
		return e.life != nil
	case backend.Kept:
		return e.record.Ends != 0
	}
	return true
}

// ForceRelease implements dibs.Inspector.
func (s *Store) ForceRelease(ctx context.Context, key dibs.Key, id string) (ended int, err error) {
	err = s.force(ctx, key, func(_ *shard, _ *entry, st *engine.State) error {
		ended = st.ForceRelease(id)
		return nil
	})
	return ended, err
}

// Forget implements dibs.Inspector.
func (s *Store) Forget(ctx context.Context, key dibs.Key) (forgot bool, err error) {
	err = s.force(ctx, key, func(_ *shard, _ *entry, st *engine.State) error {
		forgot = st.Forget()
		return nil
	})
	return forgot, err
}

// Resolve implements dibs.Inspector. It returns an error that is dibs.ErrFull when the
// record would be beyond MaxBytes.
func (s *Store) Resolve(ctx context.Context, key dibs.Key, id string, data []byte, retention time.Duration) (resolved bool, err error) {
	if retention < dibs.MinDuration {
		return false, fmt.Errorf("memstore: the retention is %v; it must be at least %v", retention, dibs.MinDuration)
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
func (s *Store) force(ctx context.Context, key dibs.Key, do func(*shard, *entry, *engine.State) error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	if err := key.Validate(); err != nil {
		return err
	}
	if err := s.step(key, dibs.Token{}, do); err != dibs.ErrLost {
		return err
	}
	return nil
}
