package mysqlstore

import (
	"context"
	"database/sql"
	"math"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/engine"
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
		var err error
		if going == nil {
			going, err = s.mayISweep(ctx)
			said = time.Now()
		} else if time.Since(said) > sweepSays {
			err = s.stillSweeping(ctx)
			said = time.Now()
		}
		if err == nil && going != nil {
			if _, err = s.sweep(ctx, going, math.MaxInt); going.done {
				going = nil
			}
		}
		cancel()
		if err == nil && going != nil {
			timer.Reset(prunePause)
		} else {
			timer.Reset(s.options.PruneEvery)
		}
	}
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
	const every = int64(sweepEvery / time.Microsecond)
	look := s.script()
	look.raw(begins).done()
	look.raw("SELECT fence,swept<=" + clock + "-").value(every).raw(" FROM @meta FOR UPDATE").asks(func(r *reading) { r.scan(&p.safe, &mine) })
	// A clock that was set back begins anew.
	look.raw("UPDATE @meta SET fence=GREATEST(fence," + clock + "),swept=" + clock + " WHERE swept<=" + clock + "-").value(every)
	look.raw(" OR swept>" + clock).done()
	look.raw("COMMIT;" + ends).done()
	err := look.on(ctx, s.front)
	if err != nil || !mine {
		return nil, explain(err)
	}
	return p, nil
}

// stillSweeping keeps others from going through all keys, too, before we are through. The
// mark stays, so that what was known of it when the walk began holds for the next one.
func (s *Store) stillSweeping(ctx context.Context) error { return s.raise(ctx, 0) }

// sweep goes through some more keys. It forgets those that nobody has used for long,
// lets time pass for those where something may have ended, and removes up to so many
// records, places and abandoned attempts.
func (s *Store) sweep(ctx context.Context, p *sweep, limit int) (removed int, err error) {
	var idle, used []string
	rows, last := 0, p.after
	find := s.script()
	find.raw("SELECT k,fence," + clock + "," + free + ",busy=1 OR token<>'' AND ends<=" + clock + " OR rec_ends>0 AND rec_ends<=" + clock + " FROM @key FORCE INDEX (PRIMARY) WHERE k>")
	find.value(p.after).raw(" ORDER BY k LIMIT ").value(int64(sweepRows)).asks(func(r *reading) {
		var fence, now int64
		var unused, ended bool
		r.scan(&last, &fence, &now, &unused, &ended)
		rows++
		switch {
		case unused && fence <= p.safe:
			idle = append(idle, last)
		case unused && fence > now:
			p.high = max(p.high, fence) // the clock was set back
		case ended:
			used = append(used, last)
		}
	})
	if err := find.on(ctx, s.front); err != nil {
		return 0, explain(err)
	}
	for some := range slices.Chunk(idle, pruneRows) {
		if err := s.forgetKeys(ctx, some, p.safe); err != nil {
			return 0, err
		}
	}
	for some := range slices.Chunk(used, pruneRows) {
		if removed >= limit {
			break
		}
		wants, n := engine.Tokens{}, 0
		for _, k := range some {
			wants[k] = nil
		}
		err := try(ctx, func() error {
			return s.work(ctx, s.front, passing, wants, func(b *engine.Batch) {
				n = 0
				for _, k := range b.Keys {
					n += b.State(k).Sweep(limit - removed - n)
				}
			})
		})
		if err != nil {
			return removed, err
		}
		removed += n
	}
	p.after = last
	if rows < sweepRows {
		p.done = true
		if p.high > 0 {
			err = s.raise(ctx, p.high)
		}
	}
	return removed, err
}

// forgetKeys deletes rows of keys that are not in use.
func (s *Store) forgetKeys(ctx context.Context, keys []string, safe int64) error {
	return try(ctx, func() error {
		return use(ctx, s.front, func(c *sql.Conn) error {
			var found []string
			lock, last := s.script(), s.script()
			lock.raw(begins).done()
			in(lock.raw("SELECT k FROM @key FORCE INDEX (PRIMARY) WHERE k"), keys).raw(" AND " + free + " AND fence<=").value(safe)
			lock.raw(" ORDER BY k FOR UPDATE SKIP LOCKED").asks(func(r *reading) {
				found = append(found, "")
				r.scan(&found[len(found)-1])
			})
			if err := lock.run(ctx, c); err != nil {
				return err
			}
			in(last.raw("DELETE FROM @key WHERE k"), found).done()
			return last.raw("COMMIT;"+ends).done().run(ctx, c)
		})
	})
}

// raise raises the mark. The next walk begins no sooner than if this one had begun now:
// claims that do not know of the mark have to be over by then.
func (s *Store) raise(ctx context.Context, fence int64) error {
	up := s.script()
	up.raw("UPDATE @meta SET fence=GREATEST(fence,").value(fence).raw("),swept=" + clock).done()
	return explain(up.on(ctx, s.front))
}
