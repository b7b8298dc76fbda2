package casstore

import (
	"context"
	"sync"
	"time"

	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/store/remote"
)

const (
	// maxWatches bounds the keys that a process watches. The turns at others are found by polls.
	maxWatches = 256
	// watchFor is how long a key is watched, even when the engine has ended the watch. Then it is watched
	// anew if the process still waits for it.
	watchFor = time.Minute
)

// watches have the engine tell of changes of the keys that this process waits for.
type watches struct {
	mu   sync.Mutex
	keys map[string]bool
}

// need has keys watched, if the engine can do that. Each change makes the process poll at once.
func (w *watches) need(s *Store, keys engine.Tokens) {
	watcher, ok := s.kv.(Watcher)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for k := range keys {
		if w.keys[k] || len(w.keys) == maxWatches {
			continue
		}
		w.keys[k] = true
		s.server.Go(func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, watchFor)
			defer cancel()
			_ = watcher.Watch(ctx, nameOf(k), func() { remote.Changed(s.core) }) // polls find what it misses
			<-ctx.Done()
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.keys, k)
		})
	}
}
