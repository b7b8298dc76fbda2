package mysqlstore

import (
	"context"
	"math"
	"time"

	"github.com/dibs-go/dibs"
)

var _ dibs.Pruner = (*Store)(nil)

const (
	// pruneRows is how many keys one transaction removes something of, and sweepRows
	// how many one look goes through.
	pruneRows = 128
	sweepRows = 512
	// prunePause is how long pruning leaves the server alone after a step.
	prunePause = 5 * time.Millisecond
	// sweepEvery is how often all keys are gone through in the background, by one
	// process. One that is not in use is remembered that long: its next claim is
	// cheaper then, and its fence is known to be below the mark before it is forgotten.
	sweepEvery = time.Minute
	// sweepSays is how often that process says that it still does so: where there are
	// very many keys it takes longer than until the next one would begin.
	sweepSays = sweepEvery / 4
	// pruneLimit bounds one step.
	pruneLimit = 10 * time.Second
)

// Prune implements dibs.Pruner. It works in small steps, each a transaction of its
// own, and passes over what somebody is at.
func (s *Store) Prune(ctx context.Context, limit int) (int, error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	left := limit
	if limit <= 0 {
		left = math.MaxInt
	}
	removed := 0
	for removed < left {
		n, more, err := s.pruneRecords(ctx, left-removed)
		removed += n
		if err != nil {
			return removed, err
		}
		if !more {
			break
		}
	}
	for p := (&sweep{}); !p.done && removed < left; {
		n, err := s.sweep(ctx, p, left-removed)
		removed += n
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// prunes removes what has ended, in the background. What is wrong with the server is
// told to those who make calls.
func (s *Store) prunes() {
	timer := time.NewTimer(s.options.PruneEvery)
	defer timer.Stop()
	var going *sweep
	var said time.Time // when others were told of it
	for {
		select {
		case <-timer.C:
		case <-s.life.Done():
			return
		}
		ctx, cancel := context.WithTimeout(s.life, pruneLimit)
		_, more, err := s.pruneRecords(ctx, math.MaxInt)
		if err == nil && going == nil {
			going, err = s.mayISweep(ctx)
			said = time.Now()
		}
		if err == nil && going != nil && time.Since(said) > sweepSays {
			err = s.stillSweeping(ctx)
			said = time.Now()
		}
		if err == nil && going != nil {
			if _, err = s.sweep(ctx, going, math.MaxInt); going.done {
				going = nil
			}
		}
		cancel()
		if err == nil && (more || going != nil) {
			timer.Reset(prunePause)
		} else {
			timer.Reset(s.options.PruneEvery)
		}
	}
}

// pruneRecords removes some records that have ended, the oldest first.
func (s *Store) pruneRecords(ctx context.Context, limit int) (n int, more bool, err error) {
	var keys []string
	find := &script{}
	find.raw(s.names.sql("SELECT k FROM @record FORCE INDEX (record_ends) WHERE ends<=" + clock + " ORDER BY ends LIMIT ")).int(int64(min(limit, pruneRows)))
	find.asks(func(r *reading) error { keys = append(keys, r.string()); return r.err })
	if err := use(ctx, s.front, func(c session) error { return c.run(ctx, find) }); err != nil || len(keys) == 0 {
		return 0, false, explain(err)
	}
	err = s.sweepKeys(ctx, keys, func() { n = 0 }, func(st *state) error {
		if st.record.ends != 0 && st.record.ends <= st.now {
			st.erase()
			n++
		}
		return nil
	})
	return n, n > 0 && len(keys) == pruneRows, err
}

// sweepKeys works on those of the keys that nobody is at. What the server has undone as a
// whole is begun anew.
func (s *Store) sweepKeys(ctx context.Context, keys []string, begin func(), do func(*state) error) error {
	return try(ctx, func() error { return s.sweepOnce(ctx, keys, begin, do) })
}

func (s *Store) sweepOnce(ctx context.Context, keys []string, begin func(), do func(*state) error) error {
	begin()
	return use(ctx, s.front, func(c session) error {
		b := s.newBatch(c, locking)
		lock := &script{}
		lock.raw(begins).done()
		lock.raw(s.names.sql("SELECT k FROM @key FORCE INDEX (PRIMARY) WHERE k IN (")).keys(keys).raw(") ORDER BY k FOR UPDATE SKIP LOCKED")
		lock.asks(func(r *reading) error { b.tokens[r.string()] = nil; return r.err })
		if err := c.run(ctx, lock); err != nil {
			return err
		}
		if len(b.tokens) > 0 {
			if err := b.load(ctx, "", nil); err != nil {
				return err
			}
		}
		for _, k := range b.keys {
			if err := do(b.states[k]); err != nil {
				return err
			}
		}
		last := &script{}
		b.write(last)
		last.raw("COMMIT;" + ends).done()
		if err := c.run(ctx, last); err != nil {
			return err
		}
		for _, k := range b.keys {
			s.waiting.told(b.states[k].turns)
		}
		return nil
	})
}

// sweep is a walk through all keys.
type sweep struct {
	after string // the last key that was seen
	done  bool
	safe  int64 // fences up to that are below the mark, as everybody knows
	high  int64 // the highest that was seen beyond that of a key that is not in use
}

// mayISweep returns a walk when it is our turn to make one. The mark is raised to
// the time when the walk begins, and to what else was found, so that by the next one
// no claim is under way that does not know of it.
func (s *Store) mayISweep(ctx context.Context) (*sweep, error) {
	p, mine := &sweep{}, false
	err := use(ctx, s.front, func(c session) error {
		look := &script{}
		look.raw(begins).done()
		look.raw(s.names.sql("SELECT fence,swept," + clock + " FROM @meta FOR UPDATE")).asks(func(r *reading) error {
			fence, swept, now := r.int(), r.int(), r.int()
			p.safe = fence
			mine = swept <= now-int64(sweepEvery/time.Microsecond)
			return r.err
		})
		// A clock that was set back begins anew.
		look.raw(s.names.sql("UPDATE @meta SET fence=GREATEST(fence," + clock + "),swept=" + clock +
			" WHERE swept<=" + clock + "-")).int(int64(sweepEvery / time.Microsecond)).raw(" OR swept>" + clock).done()
		look.raw("COMMIT;" + ends).done()
		return c.run(ctx, look)
	})
	if err != nil || !mine {
		return nil, explain(err)
	}
	return p, nil
}

// stillSweeping keeps others from going through all keys, too, before we are through. The
// mark stays, so that what was known of it when the walk began holds for the next one.
func (s *Store) stillSweeping(ctx context.Context) error {
	say := &script{}
	say.raw(s.names.sql("UPDATE @meta SET swept=" + clock)).done()
	return explain(use(ctx, s.front, func(c session) error { return c.run(ctx, say) }))
}

// sweep goes through some more keys. It forgets those that nobody has used for long,
// lets time pass for those where something may have ended, and removes up to so many
// places and abandoned attempts.
func (s *Store) sweep(ctx context.Context, p *sweep, limit int) (removed int, err error) {
	var idle, used []string
	rows, last := 0, p.after
	find := &script{}
	find.raw(s.names.sql("SELECT k,fence," + clock + ",token='' AND busy=0 AND rec_ends=0," +
		"token<>'' AND ends<=" + clock + " OR queued=1 OR busy=1 AND permits>1 OR lost_token<>'' AND lost_once=0 AND lost_ends+")).
		int(memory).raw("<=" + clock)
	find.raw(s.names.sql(" FROM @key FORCE INDEX (PRIMARY) WHERE k>")).bytes(p.after).raw(" ORDER BY k LIMIT ").int(sweepRows)
	find.asks(func(r *reading) error {
		k, fence, now, unused, ended := r.string(), r.int(), r.int(), r.bool(), r.bool()
		rows, last = rows+1, k
		switch {
		case unused && fence <= p.safe:
			idle = append(idle, k)
		case unused && fence > now:
			p.high = max(p.high, fence) // the clock was set back
		case ended:
			used = append(used, k)
		}
		return r.err
	})
	if err := use(ctx, s.front, func(c session) error { return c.run(ctx, find) }); err != nil {
		return 0, explain(err)
	}
	if err := s.forgetKeys(ctx, idle, p.safe); err != nil {
		return 0, err
	}
	for len(used) > 0 && removed < limit {
		some := used[:min(len(used), pruneRows)]
		used = used[len(some):]
		n := 0
		err := s.sweepKeys(ctx, some, func() { n = 0 }, func(st *state) error {
			more, err := st.sweep(limit - removed - n)
			n += more
			return err
		})
		if err != nil {
			return removed, err
		}
		removed += n
	}
	p.after = last
	if rows < sweepRows {
		p.done = true
		return removed, s.raise(ctx, p.high)
	}
	return removed, nil
}

// sweep removes up to so many places and abandoned attempts.
func (st *state) sweep(limit int) (removed int, err error) {
	q := &st.queue
	for !q.complete {
		if err := q.more(); err != nil {
			return 0, err
		}
	}
	for _, p := range q.standing() {
		if p.ends <= st.now && removed < limit {
			q.remove(p.seq)
			removed++
		}
	}
	if removed == limit {
		return removed, nil // what else there is counts for the next
	}
	abandons := st.lost != nil
	if err := st.advance(); err != nil {
		return removed, err
	}
	if abandons && st.lost == nil {
		removed++
	}
	return removed, nil
}

// forgetKeys deletes rows of keys that are not in use.
func (s *Store) forgetKeys(ctx context.Context, keys []string, safe int64) error {
	for len(keys) > 0 {
		some := keys[:min(len(keys), pruneRows)]
		keys = keys[len(some):]
		err := try(ctx, func() error {
			return use(ctx, s.front, func(c session) error { return s.forgetSome(ctx, c, some, safe) })
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) forgetSome(ctx context.Context, c session, keys []string, safe int64) error {
	free := map[string]bool{}
	lock := &script{}
	lock.raw(begins).done()
	lock.raw(s.names.sql("SELECT k FROM @key FORCE INDEX (PRIMARY) WHERE k IN (")).keys(keys).
		raw(") AND token='' AND busy=0 AND rec_ends=0 AND fence<=").int(safe).raw(" ORDER BY k FOR UPDATE SKIP LOCKED")
	lock.asks(func(r *reading) error { free[r.string()] = true; return r.err })
	if err := c.run(ctx, lock); err != nil {
		return err
	}
	last := &script{}
	if len(free) > 0 {
		last.raw(s.names.sql("DELETE FROM @key WHERE k IN (")).keys(sorted(free)).raw(")").done()
	}
	return c.run(ctx, last.raw("COMMIT;"+ends).done())
}

// raise raises the mark. The next walk begins no sooner than if this one had begun now:
// claims that do not know of the mark have to be over by then.
func (s *Store) raise(ctx context.Context, fence int64) error {
	if fence == 0 {
		return nil
	}
	up := &script{}
	up.raw(s.names.sql("UPDATE @meta SET fence=GREATEST(fence,")).int(fence).raw("),swept=" + clock).done()
	return explain(use(ctx, s.front, func(c session) error { return c.run(ctx, up) }))
}
