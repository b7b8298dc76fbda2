package memstore

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/store"
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

// stop ends the timer forever.
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
	sh.soonest = min(sh.soonest, e.soonest())
	if w := &sh.store.sweeper; sh.soonest != never && !w.set.Load() {
		w.start(sh.store)
	}
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
func (s *Store) reclaim(now int64) bool {
	first := s.reclaimed.Add(1)
	for i := range uint32(shardCount) {
		if s.shards[(first+i)%shardCount].sweep(now, math.MaxInt) > 0 {
			return true
		}
	}
	return false
}

// Prune implements store.Pruner.
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
func (sh *shard) sweep(now int64, limit int) (removed int) {
	sh.mu.Lock()
	defer sh.unlock(store.Token{})
	if sh.soonest > now {
		return 0
	}
	var due []*entry
	soonest := never
	for _, e := range sh.entries {
		if first := e.soonest(); first <= now {
			due = append(due, e)
		} else {
			soonest = min(soonest, first)
		}
	}
	sh.soonest = soonest
	for _, e := range due {
		if removed < limit {
			removed += sh.prune(e, now, limit-removed)
		} else {
			sh.schedule(e)
		}
	}
	sh.store.swept.Add(uint64(removed)) //nolint:gosec // it is not negative
	return removed
}

// prune lets time pass at an entry, removes up to limit things that have expired, and returns
// how many.
func (sh *shard) prune(e *entry, now int64, limit int) (n int) {
	if e.record.Ends != 0 && e.record.Ends <= now {
		sh.dropRecord(e)
		n++
	}
	n += sh.begin(e, now).Sweep(limit - n)
	sh.finish(e, now)
	return n
}
