package memstore

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backend"
)

// listStep is how many entries are described under one lock.
const listStep = 64

// List implements dibs.Inspector. A key that is there from the beginning to
// the end is listed once. The caller may use the store while it reads.
func (s *Store) List(ctx context.Context, q dibs.Query) iter.Seq2[dibs.Entry, error] {
	return func(yield func(dibs.Entry, error) bool) {
		if q.Namespace != nil && q.Name != "" {
			s.listOne(ctx, dibs.Key{Namespace: *q.Namespace, Name: q.Name}, &q, yield)
			return
		}
		for i := range s.shards {
			// All up to a hash, in the order of the hashes, then on from it.
			for from, more := uint64(0), true; more; {
				if err := s.usable(ctx); err != nil {
					yield(dibs.Entry{}, err)
					return
				}
				var found []dibs.Entry
				found, from, more = s.shards[i].list(&q, from)
				for _, e := range found {
					if !yield(e, nil) {
						return
					}
				}
			}
		}
	}
}

func (s *Store) listOne(ctx context.Context, k dibs.Key, q *dibs.Query, yield func(dibs.Entry, error) bool) {
	if err := s.usable(ctx); err != nil {
		yield(dibs.Entry{}, err)
		return
	}
	if found, ok := s.describe(k, q); ok {
		yield(found, nil)
	}
}

// describe describes one key if it matches.
func (s *Store) describe(k dibs.Key, q *dibs.Query) (found dibs.Entry, ok bool) {
	s.step(k, func(sh *shard, e *entry, now instant) {
		found, ok = e.describe(q, now)
	})
	return found, ok
}

// list describes what matches in the buckets from that of a hash on, until
// there are enough, and returns where to go on.
func (sh *shard) list(q *dibs.Query, from uint64) (found []dibs.Entry, next uint64, more bool) {
	sh.mu.Lock()
	defer sh.unlock(dibs.Token{})
	now := sh.store.now()
	seen := 0
	for b := from >> sh.shift; b < uint64(len(sh.buckets)); b++ {
		if seen >= listStep {
			return found, b << sh.shift, true
		}
		for e := sh.buckets[b]; e != nil; e = e.next {
			seen++
			if e.hash < from || q.Name != "" && string(e.name[e.ns:]) != q.Name ||
				q.Namespace != nil && string(e.name[:e.ns]) != *q.Namespace {
				continue
			}
			sh.advance(e, now)
			if d, ok := e.describe(q, now); ok {
				found = append(found, d)
			}
			sh.schedule(e, now) // no entry is removed here, because that may resize the table
		}
	}
	return found, 0, false
}

// describe returns what there is to know, and whether there is anything that
// the query asks for.
func (e *entry) describe(q *dibs.Query, now instant) (dibs.Entry, bool) {
	d := dibs.Entry{Key: e.key()}
	var places []dibs.PlaceInfo
	if e.queue != nil {
		places = e.queue.living(now)
	}
	if d.Waiters = len(places); q.Places {
		d.Places = places
	}
	if e.held > 0 {
		d.Permits = int(e.permits)
	}
	for a := e.leases; a != nil; a = a.next {
		d.Attempts = append(d.Attempts, a.describe(now))
	}
	if e.lost != nil {
		d.Attempts = append(d.Attempts, e.lost.describe(now))
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
	backend.Describe(&d, e.held > 0, e.unknown(), e.lost != nil)
	return d, backend.Matches(&d, q)
}

func (a *attempt) describe(now instant) dibs.Attempt {
	return dibs.Attempt{
		ID:      a.token.ID(),
		Owner:   dibs.ParseOwner(a.owner.String()), // as every store keeps it
		Fence:   a.fence,
		Attempt: a.number,
		Since:   a.since.until(now),
		Left:    now.until(a.until),
	}
}

// ForceRelease implements dibs.Inspector.
func (s *Store) ForceRelease(ctx context.Context, key dibs.Key, id string) (int, error) {
	if err := s.usableFor(ctx, key); err != nil {
		return 0, err
	}
	ended := 0
	s.step(key, func(sh *shard, e *entry, now instant) {
		for l := e.leases; l != nil; {
			next := l.next
			if id == "" || l.token.ID() == id {
				sh.release(e, l)
				ended++
			}
			l = next
		}
		if e.lost != nil && (id == "" || e.lost.token.ID() == id) {
			ended++
		}
		if ended > 0 {
			sh.clean(e)
			sh.serve(e, now)
		}
	})
	return ended, nil
}

// Forget implements dibs.Inspector.
func (s *Store) Forget(ctx context.Context, key dibs.Key) (bool, error) {
	if err := s.usableFor(ctx, key); err != nil {
		return false, err
	}
	forgot := false
	s.step(key, func(sh *shard, e *entry, now instant) {
		if forgot = e.record != nil || e.lost != nil; !forgot {
			return
		}
		if e.record != nil {
			sh.dropRecord(e)
		}
		sh.clean(e)
		sh.serve(e, now)
	})
	return forgot, nil
}

// Resolve implements dibs.Inspector. It returns an error that is dibs.ErrFull
// when the record would be beyond MaxBytes.
func (s *Store) Resolve(ctx context.Context, key dibs.Key, id string, data []byte, retention time.Duration) (bool, error) {
	if err := s.usableFor(ctx, key); err != nil {
		return false, err
	}
	if retention < dibs.MinDuration {
		return false, fmt.Errorf("memstore: the retention is %v; it must be at least %v", retention, dibs.MinDuration)
	}
	for {
		resolved, err := s.resolve(key, id, data, retention)
		if err != errNoBytes || !s.reclaim(s.now()) {
			return resolved, err
		}
	}
}

func (s *Store) resolve(key dibs.Key, id string, data []byte, retention time.Duration) (resolved bool, err error) {
	s.step(key, func(sh *shard, e *entry, now instant) {
		if !e.unknown() || id != "" && e.lost.token.ID() != id {
			return
		}
		if !sh.keep(e, e.lost.token, e.lost.fingerprint, data, retention, now) {
			err = errNoBytes
			return
		}
		resolved = true
		sh.clean(e)
		sh.serve(e, now)
	})
	return resolved, err
}

// step does something with the entry of a key, if there is one.
func (s *Store) step(key dibs.Key, do func(sh *shard, e *entry, now instant)) {
	hash := s.hash(key)
	sh := s.shard(hash)
	sh.mu.Lock()
	defer sh.unlock(dibs.Token{})
	now := s.now()
	if e := sh.find(hash, key); e != nil {
		sh.advance(e, now)
		do(sh, e, now)
		sh.finish(e, now)
	}
}

func (s *Store) usableFor(ctx context.Context, key dibs.Key) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	return key.Validate()
}
