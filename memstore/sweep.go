package memstore

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
)

// sweeper is the store's timer for what nobody asks about. It is set while
// there is anything that can run out, to fire within five minutes and not more
// often than every five seconds; when it finds nothing left, it is not set again.
type sweeper struct {
	mu     sync.Mutex
	timer  *time.Timer
	at     atomic.Int64 // the instant when it fires; never when it is not set
	closed bool
}

const (
	sweepOften = 5 * time.Second
	sweepRare  = 5 * time.Minute
)

func (w *sweeper) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.timer != nil {
		w.timer.Stop()
	}
}

// set makes the timer fire soon after due.
func (w *sweeper) set(s *Store, due, now instant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := min(max(due, now).after(sweepOften), now.after(sweepRare))
	switch {
	case w.closed || int64(at) >= w.at.Load():
		return
	case w.timer == nil:
		w.timer = time.AfterFunc(now.until(at), s.sweep)
	default:
		w.timer.Reset(now.until(at))
	}
	w.at.Store(int64(at))
}

// schedule sees to it that somebody looks at the shard when something in the entry
// has run out.
func (sh *shard) schedule(e *entry, now instant) {
	due := e.firstEnd()
	if due >= sh.soonest {
		return
	}
	sh.soonest = due
	if w := &sh.store.sweeper; w.at.Load() > int64(due.after(sweepOften)) {
		w.set(sh.store, due, now)
	}
}

// firstEnd returns a moment before which nothing in the entry runs out; 0 for one that
// can be removed.
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
	if e.lost != nil {
		first = min(first, e.forgotten())
	}
	if e.queue != nil {
		first = min(first, e.queue.soonest)
	}
	return first
}

// forgotten returns when the abandoned attempt is forgotten.
func (e *entry) forgotten() instant {
	if e.lost.atMostOnce {
		return never
	}
	return e.lost.until.after(dibs.AbandonedRetention)
}

// sweep removes what has run out.
func (s *Store) sweep() {
	s.sweeper.at.Store(int64(never))
	if s.closed.Load() {
		return
	}
	now, next := s.now(), never
	for i := range s.shards {
		sh := &s.shards[i]
		sh.sweep(now, math.MaxInt)
		sh.mu.Lock()
		next = min(next, sh.soonest)
		sh.mu.Unlock()
	}
	if next != never {
		s.sweeper.set(s, next, now)
	}
}

// reclaim removes something that has run out, to make room, and reports
// whether there was anything. What it costs when there is not is one lock and
// one comparison for each shard.
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

// sweep removes up to limit records, places and abandoned attempts that have run out,
// and returns how many. It looks at the entries only when one can have.
func (sh *shard) sweep(now instant, limit int) (removed int) {
	sh.mu.Lock()
	defer sh.unlock(dibs.Token{})
	if sh.soonest > now {
		return 0
	}
	var due []*entry
	soonest := never
	for _, e := range sh.buckets {
		for ; e != nil; e = e.next {
			if first := e.firstEnd(); first <= now {
				due = append(due, e)
			} else {
				soonest = min(soonest, first)
			}
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

// prune abandons the leases that have run out, removes up to limit of what else has, and
// returns how many.
func (sh *shard) prune(e *entry, now instant, limit int) int {
	n := 0
	if e.held > 0 && e.soonest <= now {
		sh.runOut(e, now)
	}
	if e.queue != nil {
		n = sh.expireAll(e.queue, now, limit)
	}
	if e.record != nil && e.record.until <= now && n < limit {
		sh.dropRecord(e)
		n++
	}
	if e.lost != nil && e.forgotten() <= now && n < limit {
		sh.clean(e)
		n++
	}
	return n
}
