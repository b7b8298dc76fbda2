package memstore

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
)

// sweepEvery is how often the store removes what has expired at keys that no call asks for.
const sweepEvery = time.Minute

// sweeper is the store's timer. It is set while the store has anything that can expire.
type sweeper struct {
	mu    sync.Mutex
	timer *time.Timer
	set   atomic.Bool
}

func (w *sweeper) start(s *Store) {
	if w.set.Swap(true) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case s.closed.Load():
	case w.timer == nil:
		w.timer = time.AfterFunc(sweepEvery, s.sweep)
	default:
		w.timer.Reset(sweepEvery)
	}
}

// stop ends the timer for ever.
func (w *sweeper) stop() {
	w.set.Store(true)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
}

// schedule makes the sweeper find what expires in the entry.
func (sh *shard) schedule(e *entry) {
	sh.soonest = min(sh.soonest, e.firstEnd())
	if w := &sh.store.sweeper; sh.soonest != never && !w.set.Load() {
		w.start(sh.store)
	}
}

// firstEnd returns an instant before which nothing in the entry expires; 0 if it is idle.
func (e *entry) firstEnd() instant {
	if e.idle() {
		return 0
	}
	first := never
	if e.held > 0 {
		first = e.soonest
	}
	if e.record != nil {
		first = min(first, e.record.until)
	}
	if e.abandoned != nil {
		first = min(first, e.forgotten())
	}
	if e.queue != nil {
		first = min(first, e.queue.soonest)
	}
	return first
}

// forgotten returns when the abandoned lease is forgotten.
func (e *entry) forgotten() instant {
	if e.abandoned.atMostOnce {
		return never
	}
	return e.abandoned.until.after(dibs.AbandonedRetention)
}

// sweep removes what has expired.
func (s *Store) sweep() {
	if s.closed.Load() {
		return
	}
	s.sweeper.set.Store(false)
	for i := range s.shards {
		sh := &s.shards[i]
		sh.sweep(s.now(), math.MaxInt)
		sh.mu.Lock()
		again := sh.soonest != never
		sh.mu.Unlock()
		if again {
			s.sweeper.start(s)
		}
	}
}

// reclaim removes something that has expired, to make room, and reports whether there was
// anything.
func (s *Store) reclaim(now instant) bool {
	first := s.reclaimed.Add(1)
	for i := range uint32(shardCount) {
		if s.shards[(first+i)%shardCount].sweep(now, math.MaxInt) > 0 {
			return true
		}
	}
	return false
}

// Prune implements dibs.Pruner.
func (s *Store) Prune(ctx context.Context, limit int) (int, error) {
	if limit <= 0 {
		limit = math.MaxInt
	}
	total := 0
	for i := range s.shards {
		if err := s.usable(ctx); err != nil || total >= limit {
			return total, err
		}
		total += s.shards[i].sweep(s.now(), limit-total)
	}
	return total, nil
}

// sweep removes up to limit expired records, places and abandoned leases, and returns how
// many.
func (sh *shard) sweep(now instant, limit int) (removed int) {
	sh.mu.Lock()
	defer sh.unlock(dibs.Token{})
	if sh.soonest > now {
		return 0
	}
	var due []*entry
	soonest := never
	for _, e := range sh.entries {
		if first := e.firstEnd(); first <= now {
			due = append(due, e)
		} else {
			soonest = min(soonest, first)
		}
	}
	sh.soonest = soonest
	for _, e := range due {
		if removed < limit {
			removed += sh.prune(e, now, limit-removed)
			sh.serve(e, now)
		}
		sh.finish(e, now)
	}
	return removed
}

// prune abandons the expired leases, removes up to limit other things that have expired, and
// returns how many.
func (sh *shard) prune(e *entry, now instant, limit int) int {
	n := 0
	if e.held > 0 && e.soonest <= now {
		sh.expireLeases(e, now)
	}
	if e.queue != nil {
		n = e.queue.expireAll(now, limit)
	}
	if e.record != nil && e.record.until <= now && n < limit {
		sh.dropRecord(e)
		n++
	}
	if e.abandoned != nil && e.forgotten() <= now && n < limit {
		sh.clean(e)
		n++
	}
	return n
}
