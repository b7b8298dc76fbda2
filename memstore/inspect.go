package memstore

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backend"
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
			var found dibs.Entry
			var ok bool
			_ = s.step(key, dibs.Token{}, func(_ *shard, e *entry, now instant) error {
				found, ok = e.describe(&q, now)
				return nil
			})
			if ok && !yield(found, nil) {
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
		return e.held > 0 || e.queue != nil || e.abandoned != nil
	case backend.Kept:
		return e.record != nil
	}
	return true
}

// describe returns what is known about the key, and whether the query selects it.
func (e *entry) describe(q *dibs.Query, now instant) (dibs.Entry, bool) {
	d := dibs.Entry{Key: e.key}
	if e.queue != nil {
		e.queue.describe(&d, q.Places, now)
	}
	if e.held > 0 {
		d.Permits = int(e.permits)
	}
	for a := e.leases; a != nil; a = a.next {
		d.Attempts = append(d.Attempts, a.describe(now))
	}
	if e.abandoned != nil {
		d.Attempts = append(d.Attempts, e.abandoned.describe(now))
	}
	if r := e.record; r != nil {
		d.Record = &dibs.RecordInfo{
			ID: r.token.ID(), Bytes: len(r.data),
			Age: r.written.until(now), Left: now.until(r.until),
		}
		if q.Data {
			d.Record.Data = r.data
		}
	}
	backend.Describe(&d, e.held > 0, e.unknown(), e.abandoned != nil)
	return d, backend.Matches(&d, q)
}

func (a *attempt) describe(now instant) dibs.Attempt {
	return dibs.Attempt{
		ID:      a.token.ID(),
		Owner:   dibs.ParseOwner(a.owner.String()),
		Fence:   a.fence,
		Attempt: a.number,
		Since:   a.since.until(now),
		Left:    now.until(a.until),
	}
}

// ForceRelease implements dibs.Inspector.
func (s *Store) ForceRelease(ctx context.Context, key dibs.Key, id string) (ended int, err error) {
	err = s.force(ctx, key, func(sh *shard, e *entry, now instant) error {
		for l := e.leases; l != nil; {
			next := l.next
			if id == "" || l.token.ID() == id {
				sh.release(e, l)
				ended++
			}
			l = next
		}
		if e.abandoned != nil && (id == "" || e.abandoned.token.ID() == id) {
			ended++
		}
		if ended > 0 {
			sh.clean(e)
		}
		return nil
	})
	return ended, err
}

// Forget implements dibs.Inspector.
func (s *Store) Forget(ctx context.Context, key dibs.Key) (forgot bool, err error) {
	err = s.force(ctx, key, func(sh *shard, e *entry, now instant) error {
		forgot = e.record != nil || e.abandoned != nil
		if e.record != nil {
			sh.dropRecord(e)
		}
		sh.clean(e)
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
	err = s.force(ctx, key, func(sh *shard, e *entry, now instant) error {
		if !e.unknown() || id != "" && e.abandoned.token.ID() != id {
			return nil
		}
		if !sh.keep(e, e.abandoned.token, e.abandoned.fingerprint, data, retention, now) {
			return errNoBytes
		}
		resolved = true
		sh.clean(e)
		return nil
	})
	return resolved, err
}

// force runs do on the entry of a key, if there is one, and serves the key's waiters.
func (s *Store) force(ctx context.Context, key dibs.Key, do func(sh *shard, e *entry, now instant) error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	if err := key.Validate(); err != nil {
		return err
	}
	err := s.step(key, dibs.Token{}, func(sh *shard, e *entry, now instant) error {
		err := do(sh, e, now)
		sh.serve(e, now)
		return err
	})
	if err == dibs.ErrLost {
		return nil
	}
	return err
}
