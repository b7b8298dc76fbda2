package remote

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/dibs-go/dibs/store/engine"
)

const (
	// SweepEvery is how often the processes of a store sweep its keys in the background; one
	// process does it at a time. A key that is not in use is remembered that long, because
	// its next claim is cheaper then.
	SweepEvery = time.Minute
	// keepEvery is how often that process says that it still sweeps. With very many keys a
	// sweep takes longer than SweepEvery.
	keepEvery = SweepEvery / 4

	// PruneLimit bounds one step.
	PruneLimit = 10 * time.Second
	// pruneKeys is how many keys one transaction of a sweep works on at most.
	pruneKeys = 128
	// prunePause is how long a sweep leaves the server alone after a step.
	prunePause = 5 * time.Millisecond
)

// Sweep goes through some more keys. It deletes up to limit rows that have expired and that
// depend on nothing else, and reports how many. It returns the keys with other rows that may
// have expired, and whether these were the last keys.
type Sweep func(ctx context.Context, limit int) (removed int, keys []string, done bool, err error)

// Prune implements store.Pruner. It works in small steps, each of which is a transaction of
// its own, and passes over keys that another transaction has locked.
func (s *Store) Prune(ctx context.Context, limit int) (removed int, err error) {
	if err := s.server.Usable(ctx); err != nil {
		return 0, err
	}
	if limit <= 0 {
		limit = math.MaxInt
	}
	sweep := s.server.Sweep()
	for done := false; !done && err == nil && removed < limit; {
		var n int
		n, done, err = s.step(ctx, sweep, limit-removed)
		removed += n
	}
	return removed, err
}

// step makes one step of a sweep.
func (s *Store) step(ctx context.Context, sweep Sweep, limit int) (removed int, done bool, err error) {
	removed, keys, done, err := sweep(ctx, limit)
	for some := range slices.Chunk(keys, pruneKeys) {
		if err != nil || removed >= limit {
			break
		}
		wants, n := engine.Tokens{}, 0
		for _, k := range some {
			wants[k] = nil
		}
		err = s.server.Try(ctx, func() error {
			return s.work(ctx, Passing, wants, func(b *engine.Batch) {
				n = 0
				for _, k := range b.Keys {
					n += b.State(k).Sweep(limit - removed - n)
				}
			})
		})
		if err == nil {
			removed += n
		}
	}
	return removed, done, err
}

// Start prunes in the background, if the server says so.
func Start(s *Store) {
	if s.server.PruneEvery > 0 {
		s.server.Go(s.prune)
	}
}

// prune sweeps all keys now and then until ctx ends. It reports no errors, because calls
// return what is wrong with the server.
func (s *Store) prune(ctx context.Context) {
	timer := time.NewTimer(s.server.PruneEvery)
	defer timer.Stop()
	var sweep Sweep
	var kept time.Time
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		step, cancel := context.WithTimeout(ctx, PruneLimit)
		var err error
		if sweep == nil {
			sweep, err = s.server.TakeSweep(step)
			kept = time.Now()
		} else if time.Since(kept) > keepEvery {
			err = s.server.KeepSweep(step)
			kept = time.Now()
		}
		if err == nil && sweep != nil {
			var done bool
			if _, done, err = s.step(step, sweep, math.MaxInt); done {
				sweep = nil
			}
		}
		cancel()
		if err == nil && sweep != nil {
			timer.Reset(prunePause)
		} else {
			timer.Reset(s.server.PruneEvery)
		}
	}
}
