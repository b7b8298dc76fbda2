package memstore

import (
	"sync"

	"github.com/dibs-go/dibs"
)

// shard is a part of the keys under one lock: a hash table whose buckets are
// lists of entries, and what was used and can be used again.
type shard struct {
	mu    sync.Mutex
	store *Store

	// buckets has a power of two of lists. An entry's bucket is given by the
	// highest bits of its hash, so that the buckets are in the order of the
	// hashes whatever their number, and List finds on after a resize.
	buckets []*entry
	shift   int // 64 - log2(len(buckets))
	count   int // entries

	soonest instant      // nothing in an entry runs out before
	woken   []dibs.Token // to be told after this step

	entries  free[entry]
	attempts free[attempt]
	records  free[record]
	queues   free[queue]
	places   free[place]
}

// minBuckets is the size of an empty table.
const minBuckets = 8

func (sh *shard) init() {
	sh.resize(minBuckets)
	sh.soonest = never
}

// close stops the timers and forgets everything.
func (sh *shard) close() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, e := range sh.buckets {
		for ; e != nil; e = e.next {
			if q := e.queue; q != nil {
				q.entry = nil
				if q.timer != nil {
					q.timer.Stop()
				}
			}
		}
	}
	sh.buckets, sh.count = nil, 0
	sh.entries, sh.attempts = free[entry]{}, free[attempt]{}
	sh.records, sh.queues, sh.places = free[record]{}, free[queue]{}, free[place]{}
	sh.init()
}

// find returns the entry of a key, or nil.
func (sh *shard) find(hash uint64, k dibs.Key) *entry {
	for e := sh.buckets[hash>>sh.shift]; e != nil; e = e.next {
		if e.hash == hash && e.is(k) {
			return e
		}
	}
	return nil
}

// add returns a new, idle entry for a key, or nil when there are too many.
func (sh *shard) add(hash uint64, k dibs.Key) *entry {
	if sh.store.keys.Add(1) > int64(sh.store.options.MaxKeys) {
		sh.store.keys.Add(-1)
		return nil
	}
	if sh.count >= len(sh.buckets) {
		sh.resize(2 * len(sh.buckets))
	}
	e := sh.entries.get()
	if e == nil {
		e = new(entry)
	}
	e.hash = hash
	e.name = append(append(e.name[:0], k.Namespace...), k.Name...)
	e.ns = uint8(len(k.Namespace))
	b := &sh.buckets[hash>>sh.shift]
	e.next, *b = *b, e
	sh.count++
	return e
}

// remove forgets an idle entry.
func (sh *shard) remove(e *entry) {
	b := &sh.buckets[e.hash>>sh.shift]
	for *b != e {
		b = &(*b).next
	}
	*b = e.next
	sh.count--
	sh.store.keys.Add(-1)
	name := e.name
	*e = entry{}
	if cap(name) <= 128 {
		e.name = name
	}
	sh.entries.put(e)
	if sh.count < len(sh.buckets)/8 && len(sh.buckets) > minBuckets {
		sh.resize(len(sh.buckets) / 4)
	}
}

// resize moves the entries to a table of n buckets.
func (sh *shard) resize(n int) {
	old := sh.buckets
	n = max(n, minBuckets)
	sh.buckets = make([]*entry, n)
	sh.shift = 64
	for ; n > 1; n /= 2 {
		sh.shift--
	}
	for _, e := range old {
		for e != nil {
			next := e.next
			b := &sh.buckets[e.hash>>sh.shift]
			e.next, *b = *b, e
			e = next
		}
	}
}

// newAttempt returns an empty attempt.
func (sh *shard) newAttempt() *attempt {
	if a := sh.attempts.get(); a != nil {
		return a
	}
	return new(attempt)
}

// dropRecord deletes the key's record.
func (sh *shard) dropRecord(e *entry) {
	r := e.record
	e.record = nil
	sh.store.take(-len(r.data))
	*r = record{}
	sh.records.put(r)
}

// queueOf returns the key's queue, and makes one if it has none.
func (sh *shard) queueOf(e *entry) *queue {
	if e.queue == nil {
		q := sh.queues.get()
		if q == nil {
			q = &queue{shard: sh, armed: never}
		}
		q.entry, q.soonest, q.free = e, never, never
		e.queue = q
	}
	return e.queue
}

// dropQueue ends a queue in which nobody waits any more.
func (sh *shard) dropQueue(e *entry) {
	q := e.queue
	e.queue, q.entry = nil, nil
	if q.armed != never {
		q.timer.Stop()
		q.armed = never
	}
	q.byToken = nil
	q.places, q.head = q.places[:0], 0
	if cap(q.places) <= 4*shortQueue {
		sh.queues.put(q)
	}
}

// free is a short list of what can be used again.
type free[T any] struct {
	list []*T
}

// maxFree bounds a list: it is for the steady state, not for a peak.
const maxFree = 32

func (f *free[T]) get() *T {
	n := len(f.list) - 1
	if n < 0 {
		return nil
	}
	v := f.list[n]
	f.list[n] = nil
	f.list = f.list[:n]
	return v
}

func (f *free[T]) put(v *T) {
	if len(f.list) < maxFree {
		f.list = append(f.list, v)
	}
}
