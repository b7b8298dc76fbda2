package casstore

import (
	"context"
	"crypto/rand"
	"encoding/json"
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

type sweepState struct {
	Due   int64  `json:"due"`
	Nonce string `json:"nonce"`
}

// takeSweep begins a sweep if one is due and no other process began it.
func (s *Store) takeSweep(ctx context.Context) (remote.Sweep, error) {
	raw, version, err := s.kv.Get(ctx, sweepName)
	if err != nil {
		return nil, err
	}
	var state sweepState
	if version != "" {
		if err := json.Unmarshal(raw, &state); err != nil {
			return nil, fmt.Errorf("casstore: the object %q does not say when a sweep is due: %w", sweepName, err)
		}
	}
	least, most, err := s.options.Clock.Now(ctx)
	if err != nil || least < state.Due {
		return nil, err
	}
	raw, err = json.Marshal(sweepState{most + engine.Micros(s.options.PruneEvery), rand.Text()})
	if err == nil {
		_, err = s.kv.Put(ctx, sweepName, raw, version)
	}
	if errors.Is(err, ErrConflict) {
		return nil, nil
	}
	return s.sweep(), err
}
