package casstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/store/remote"
)

// page is how many names one call lists.
const page = 500

// sweep begins to go through all keys. work deletes what has expired of each.
func (s *Store) sweep() remote.Sweep {
	after := keys
	return func(ctx context.Context, _ int) (int, []string, bool, error) {
		names, err := s.kv.List(ctx, keys, after, page)
		var all []string
		for _, name := range names {
			after = name
			if k := keyOf(name); k != "" {
				all = append(all, k)
			}
		}
		return 0, all, len(names) < page, err
	}
}

// sweepName is the name of the object that says when the next sweep in the background is due.
const sweepName = "sweep"

// takeSweep begins a sweep if one is due and no other process began it.
func (s *Store) takeSweep(ctx context.Context) (remote.Sweep, error) {
	raw, version, err := s.kv.Get(ctx, sweepName)
	if err != nil {
		return nil, err
	}
	least, most, err := s.options.Clock.Now(ctx)
	if err != nil {
		return nil, err
	}
	var due int64 // 0 if there is no such object
	if _, _ = fmt.Sscan(string(raw), &due); least < due {
		return nil, nil
	}
	next := most + engine.Micros(s.options.PruneEvery)
	if _, err = s.kv.Put(ctx, sweepName, fmt.Appendln(nil, next, rand.Text()), version); errors.Is(err, ErrConflict) {
		return nil, nil
	}
	return s.sweep(), err
}
