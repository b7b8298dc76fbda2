package pgstore

import (
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/engine"
)

var _ dibs.Pruner = (*Store)(nil)

const (
	// pruneRows is how many rows one statement removes at most, and sweepPages how many
	// pages of the table of keys one looks at.
	pruneRows  = 10_000
	sweepPages = 32
	// prunePause is how long pruning leaves the server alone after a step.
	prunePause = 5 * time.Millisecond
	// sweepEvery is how often all keys are gone through in the background, by one
	// process, and keyAge how long one that is not in use is remembered: its next
	// claim is cheaper then.
	sweepEvery = time.Minute
	keyAge     = time.Minute
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
	removed, err := s.prunePlaces(ctx, left)
	for page := new(int64); err == nil && page != nil && removed < left; {
		var n int
		n, page, err = s.sweep(ctx, *page, 0, left-removed)
		removed += n
	}
	return removed, err
}

// prunes removes what has ended, in the background. What is wrong with the server is
// told to those who make calls.
func (s *Store) prunes() {
	timer := time.NewTimer(s.options.PruneEvery)
	defer timer.Stop()
	var page *int64    // where a sweep is
	var said time.Time // when others were told of it
	for {
		select {
		case <-timer.C:
		case <-s.life.Done():
			return
		}
		ctx, cancel := context.WithTimeout(s.life, pruneLimit)
		var err error
		if page == nil {
			page, err = s.mayISweep(ctx)
			said = time.Now()
			if err == nil && page != nil {
				_, err = s.prunePlaces(ctx, math.MaxInt)
			}
		} else if time.Since(said) > sweepSays {
			err = s.stillSweeping(ctx)
			said = time.Now()
		}
		if err == nil && page != nil {
			_, page, err = s.sweep(ctx, *page, keyAge, math.MaxInt)
		}
		cancel()
		if err == nil && page != nil {
			timer.Reset(prunePause)
		} else {
			timer.Reset(s.options.PruneEvery)
		}
	}
}

// prunePlaces removes up to so many places that have ended. What that frees is seen to by
// whoever asks next, or by sweep.
func (s *Store) prunePlaces(ctx context.Context, limit int) (removed int, err error) {
	for removed < limit {
		most := min(pruneRows, limit-removed)
		tag, err := s.back.Exec(ctx, s.names.sql(`DELETE FROM @waiter WHERE ctid = ANY (ARRAY(
			SELECT ctid FROM @waiter WHERE ends <= @now() LIMIT $1 FOR UPDATE SKIP LOCKED))`), pgx.QueryExecModeExec, most)
		n := int(tag.RowsAffected())
		if removed += n; err != nil || n < most {
			return removed, explain(err)
		}
	}
	return removed, nil
}

// sweep goes through some pages. It removes records that have ended, forgets keys that are
// not in use, and lets time pass for those where something else may have ended. It returns
// where to go on, nil at the end.
func (s *Store) sweep(ctx context.Context, page int64, age time.Duration, limit int) (removed int, next *int64, err error) {
	var used [][]byte
	err = s.back.QueryRow(ctx, s.names.sql("SELECT next_page, used, records FROM @sweep($1, $2, $3, $4)"), pgx.QueryExecModeExec,
		page, sweepPages, engine.Micros(age), min(limit, pruneRows)).Scan(&next, &used, &removed)
	if err != nil || len(used) == 0 {
		return removed, next, explain(err)
	}
	wants, n := engine.Tokens{}, 0
	for _, k := range used {
		wants[string(k)] = nil
	}
	err = try(ctx, func() error {
		return s.work(ctx, s.back, passing, wants, func(b *engine.Batch) {
			n = 0
			for _, k := range b.Keys {
				n += b.State(k).Sweep(limit - removed - n)
			}
		})
	})
	return removed + n, next, err
}

// mayISweep returns the first page when it is our turn to go through all.
func (s *Store) mayISweep(ctx context.Context) (*int64, error) {
	tag, err := s.back.Exec(ctx, s.names.sql("UPDATE @meta SET swept = @now() WHERE swept < @now() - $1 OR swept > @now()"),
		pgx.QueryExecModeExec, engine.Micros(sweepEvery))
	if err != nil || tag.RowsAffected() == 0 {
		return nil, explain(err)
	}
	return new(int64), nil
}

// stillSweeping keeps others from going through all keys, too, before we are through.
func (s *Store) stillSweeping(ctx context.Context) error {
	_, err := s.back.Exec(ctx, s.names.sql("UPDATE @meta SET swept = @now()"), pgx.QueryExecModeExec)
	return explain(err)
}
