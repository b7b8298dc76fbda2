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
// often than once a second; when it finds nothing left, it is not set again.
type sweeper struct {
	mu     sync.Mutex
	timer  *time.Timer
	at     atomic.Int64 // the instant when it fires; never when it is not set
	closed bool
}

const (
	sweepOften = time.Second
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

// schedule sees to it that somebody looks at the entry when something in it
// has run out.
func (sh *shard) schedule(e *entry, now instant) {
	due := e.firstEnd()
	if e.slot != 0 {
		if e.due <= due {
			return
		}
		sh.wheel.remove(e)
	} else if due == never {
		return
	}
	sh.wheel.put(e, due)
	if w := &sh.store.sweeper; w.at.Load() > int64(due.after(sweepOften)) {
		w.set(sh.store, due, now)
	}
}

// firstEnd returns a moment before which nothing in the entry runs out.
func (e *entry) firstEnd() instant {
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
	return e.lost.until.after(dibs.AbandonedMemory)
}

// sweepStep is how many entries are looked at under one lock: some 50 µs.
const sweepStep = 256

// sweep removes what has run out, a little at a time.
func (s *Store) sweep() {
	s.sweeper.at.Store(int64(never))
	if s.closed.Load() {
		return
	}
	now := s.now()
	turn := never
	for i := range s.shards {
		sh := &s.shards[i]
		for all := false; !all; {
			_, all = sh.sweep(now, math.MaxInt)
		}
		sh.mu.Lock()
		turn = min(turn, sh.wheel.turn(now))
		sh.mu.Unlock()
	}
	if turn != never {
		s.sweeper.set(s, turn, now)
	}
}

// reclaim removes something that has run out, to make room, and reports
// whether there was anything. What it costs when there is not is one lock and
// one comparison for each shard.
func (s *Store) reclaim(now instant) bool {
	first := s.reclaimed.Add(1)
	for i := range uint32(shardCount) {
		sh := &s.shards[(first+i)%shardCount]
		for all := false; !all; {
			var removed int
			if removed, all = sh.sweep(now, math.MaxInt); removed > 0 {
				return true
			}
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
		for all := false; !all && total < limit; {
			if err := s.usable(ctx); err != nil {
				return total, err
			}
			var removed int
			removed, all = s.shards[i].sweep(s.now(), limit-total)
			total += removed
		}
	}
	return total, nil
}

// sweep looks at some of what is due and removes up to limit records, places
// and abandoned attempts. all says that nothing more is due.
func (sh *shard) sweep(now instant, limit int) (removed int, all bool) {
	sh.mu.Lock()
	defer sh.unlock(dibs.Token{})
	budget := sweepStep
	for removed < limit {
		e, through := sh.wheel.look(now, &budget)
		if e == nil {
			return removed, through
		}
		removed += sh.prune(e, now, limit-removed)
		sh.wheel.remove(e)
		if removed < limit {
			sh.advance(e, now)
		}
		sh.serve(e, now)
		sh.finish(e, now)
	}
	return removed, false
}

// prune removes up to limit of what has run out, except leases, and returns
// how many.
func (sh *shard) prune(e *entry, now instant, limit int) int {
	n := 0
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
